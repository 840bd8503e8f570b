"""docs/schedulers/kubernetes: the files are valid, and treat each exit code of ftrun as its table demands."""

import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from ftrun.config import annotations, group_config, option_table, option_values
from ftrun.config.parsers import duration
from ftrun.core.rules import exit_codes
from ftrun.messages import records
from ftrun.pid1.bootstrap import TERMINATION_LOG
from schedulers.k8s import apiserver, schema
from schedulers.k8s.policies import JOB_FAILED, Matched, jobset_failure, pod_failure, volcano_failure
from support.runs import HOUSE, Runs, wait_for
from support.runs import runs as runs

FOLDER = HOUSE / "docs" / "schedulers" / "kubernetes"
NEWEST = kubernetes_validate.latest_version()
CODES = {verdict.code for verdict in exit_codes.TABLE}
FAIL, RESCHEDULE = "fail", "reschedule"
Yaml = dict[str, Any]


def documents(name: str) -> list[Yaml]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def manifest(name: str) -> Yaml:
    (found,) = documents(name)
    return found


MANIFESTS = {name: manifest(f"{name}.yaml") for name in ("job", "indexed-job", "jobset", "volcano")}
JOBSET, VOLCANO = MANIFESTS["jobset"], MANIFESTS["volcano"]
JOBS = {
    "job": MANIFESTS["job"]["spec"],
    "indexed-job": MANIFESTS["indexed-job"]["spec"],
    "group": documents("group.yaml")[1]["spec"],
    "elastic": documents("elastic.yaml")[1]["spec"],
    "jobset": JOBSET["spec"]["replicatedJobs"][0]["template"]["spec"],
}
PODS = {name: spec["template"] for name, spec in JOBS.items()} | {"volcano": VOLCANO["spec"]["tasks"][0]["template"]}
CONTAINERS = {name: pod["spec"]["containers"][0] for name, pod in PODS.items()}
every_pod = pytest.mark.parametrize("name", PODS)
every_job = pytest.mark.parametrize("name", JOBS)
every_verdict = pytest.mark.parametrize("verdict", exit_codes.TABLE, ids=lambda verdict: verdict.name)


def wanted(verdict: exit_codes.Verdict) -> str:
    return RESCHEDULE if "reschedule" in verdict.outer else FAIL


# --- validity ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["job.yaml", "indexed-job.yaml", "group.yaml", "elastic.yaml", "state.yaml", "cordon.yaml"]
)
def test_manifests_of_kubernetes_resources_are_valid(name: str) -> None:
    for document in documents(name):
        kubernetes_validate.validate(document, NEWEST, strict=True)


def test_the_templates_in_custom_resources_are_valid() -> None:
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": JOBS["jobset"]}
    kubernetes_validate.validate(job, NEWEST, strict=True)
    pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": PODS["volcano"]}
    kubernetes_validate.validate(pod, NEWEST, strict=True)


@pytest.mark.parametrize(("name", "facts"), [("jobset", schema.JOBSET), ("volcano", schema.VOLCANO)])
def test_custom_resources_are_valid(name: str, facts: schema.Schema) -> None:
    jsonschema.Draft202012Validator.check_schema(facts)
    jsonschema.validate(MANIFESTS[name], facts)


# --- exit codes -----------------------------------------------------------------------------


def job_failure(name: str, code: int) -> Matched | None:
    """What the Job does with a pod whose container ended with this code; None: it counts it against its limit."""
    return pod_failure(JOBS[name]["podFailurePolicy"]["rules"], {CONTAINERS[name]["name"]: code})


def jobset_action(failed: Matched | None) -> str:
    """What JobSet does with a Job that failed by this rule, or by its limit."""
    (job,) = JOBSET["spec"]["replicatedJobs"]
    reason = "BackoffLimitExceeded" if failed is None else JOB_FAILED
    message = (failed and failed.message) or "Job has reached the specified backoff limit"
    return jobset_failure(JOBSET["spec"]["failurePolicy"]["rules"], reason, message, job["name"])


def volcano_action(code: int) -> str:
    (task,) = VOLCANO["spec"]["tasks"]
    return volcano_failure(VOLCANO["spec"]["policies"], task.get("policies", ()), code)


@every_verdict
@pytest.mark.parametrize("name", ["job", "indexed-job", "group", "elastic"])
def test_a_job_does_with_each_code_what_the_table_demands(name: str, verdict: exit_codes.Verdict) -> None:
    """But in a group that goes on with fewer pods, a verdict of one of them ends that one alone."""
    found = job_failure(name, verdict.code)
    failed = "FailIndex" if name == "indexed-job" else "FailJob"
    assert found is not None, f"{verdict.code} has no rule in {name}.yaml"
    alone = name == "elastic" and verdict.replaceable
    assert found.action == ("Count" if alone else {FAIL: failed, RESCHEDULE: "Count"}[wanted(verdict)])


@every_verdict
def test_a_jobset_does_with_each_code_what_the_table_demands(verdict: exit_codes.Verdict) -> None:
    found = job_failure("jobset", verdict.code)
    assert found is not None, f"{verdict.code} has no rule in the Job of jobset.yaml"
    assert found.action == "FailJob"  # at once, with a message that names the code
    assert jobset_action(found) == {FAIL: "FailJobSet", RESCHEDULE: "RestartJobSet"}[wanted(verdict)]


@every_verdict
def test_volcano_does_with_each_code_what_the_table_demands(verdict: exit_codes.Verdict) -> None:
    assert verdict.code in {rule.get("exitCode") for rule in VOLCANO["spec"]["policies"]}
    assert volcano_action(verdict.code) == {FAIL: "TerminateJob", RESCHEDULE: "RestartJob"}[wanted(verdict)]


def fragment(key: str) -> Any:
    """The rules for spares and fewer pods, from the page."""
    blocks = re.findall(r"^  ```yaml\n(.*?)^  ```", readme(), re.M | re.S)
    (found,) = (made[key] for made in map(yaml.safe_load, blocks) if key in made)
    return found


@every_verdict
def test_the_rules_for_spares_end_one_pod_alone(verdict: exit_codes.Verdict) -> None:
    job = {**JOBSET, "spec": {**JOBSET["spec"], "failurePolicy": fragment("failurePolicy")}}
    jsonschema.validate(job, schema.JOBSET)
    found = job_failure("jobset", verdict.code)
    assert found is not None
    action = jobset_failure(fragment("failurePolicy")["rules"], JOB_FAILED, found.message or "")
    alone = "RestartJob" if verdict.replaceable else "RestartJobSet"
    assert action == (alone if verdict.replaceable or wanted(verdict) == RESCHEDULE else "FailJobSet")
    volcano = {**VOLCANO, "spec": {**VOLCANO["spec"], "policies": fragment("policies")}}
    jsonschema.validate(volcano, schema.VOLCANO)
    action = volcano_failure(fragment("policies"), (), verdict.code)
    alone = "RestartPod" if verdict.replaceable else "RestartJob"
    assert action == (alone if verdict.replaceable or wanted(verdict) == RESCHEDULE else "TerminateJob")


def test_a_pod_that_is_lost_or_disrupted_is_replaced_alone() -> None:
    """Its kill, the codes of its command in a group of ftrun, and its eviction."""
    rules, policies = fragment("failurePolicy")["rules"], fragment("policies")
    assert jobset_failure(rules, "BackoffLimitExceeded", "Job has reached the specified backoff limit") == "RestartJob"
    disrupted = pod_failure(JOBS["jobset"]["podFailurePolicy"]["rules"], {"train": 143}, {"DisruptionTarget": "True"})
    assert disrupted is not None
    assert jobset_failure(rules, JOB_FAILED, disrupted.message or "") == "RestartJobAndIgnoreMaxRestarts"
    assert volcano_failure(policies, (), 137) == "RestartPod"
    assert volcano_failure(policies, (), 143, "PodEvicted") == "RestartPod"


def test_the_spare_pods_are_what_ftrun_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    container, job = CONTAINERS["elastic"], JOBS["elastic"]
    environment = {"JOB_COMPLETION_INDEX": "4"} | {e["name"]: e["value"] for e in container["env"] if "value" in e}
    (tmp_path / "group").write_text("0123456789abcdef")
    monkeypatch.setattr(group_config, "SECRET", str(tmp_path / "group"))
    hosts = "10.0.0.3\ttrain-4.train.jobs.svc.cluster.local\ttrain-4\n"
    found, note = group_config.group(option_values.settings({}, environment), environment, "train-4", hosts)
    assert found, note
    assert (found.size, found.rank, found.least, found.spares, found.scale_out) == (5, 4, 3, 1, True)
    assert job["completions"] == job["parallelism"] == found.size
    assert all(word in container["args"][-1] for word in ("{nodes}", "{node_rank}", "{master_addr}"))
    assert job["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]}
    assert job["podReplacementPolicy"] == "Failed"


def test_the_commands_own_codes_are_retried_in_all_of_them() -> None:
    own = set(range(1, 256)) - CODES
    assert {job_failure(name, code) for name in JOBS for code in own} == {None}  # counted against the limit
    assert jobset_action(None) == "RestartJobSet"
    assert {volcano_action(code) for code in own} == {"RestartJob"}
    assert {pod["metadata"]["annotations"]["fault-tolerance/job-unconditional-retry"] for pod in PODS.values()} == {
        "true"
    }


@every_job
def test_a_disruption_costs_no_retry(name: str) -> None:
    """Whatever code the container ends with then."""
    rules, container = JOBS[name]["podFailurePolicy"]["rules"], CONTAINERS[name]["name"]
    for code in (0, 1, 137, 143):
        found = pod_failure(rules, {container: code}, {"DisruptionTarget": "True"})
        assert found is not None
        if name == "jobset":
            assert jobset_action(found) == "RestartJobSetAndIgnoreMaxRestarts"
        else:
            assert found.action == "Ignore"


@every_job
def test_rules_keep_the_limits_of_the_api_server(name: str) -> None:
    job = JOBS[name]
    rules = job["podFailurePolicy"]["rules"]
    assert len(rules) <= 20
    for rule in rules:
        if rule["action"] == "FailIndex":
            assert "backoffLimitPerIndex" in job
        if codes := rule.get("onExitCodes"):
            assert codes["values"] == sorted(set(codes["values"]))
            assert 0 < len(codes["values"]) <= 255
            assert codes["containerName"] == CONTAINERS[name]["name"]
    if "backoffLimitPerIndex" in job:
        assert job["completionMode"] == "Indexed"


# --- options and environment of ftrun --------------------------------------------------------------------------------


@every_pod
def test_options_exist_and_their_values_are_valid(name: str) -> None:
    arguments = CONTAINERS[name]["args"]
    options = arguments[: arguments.index("--")]
    assert options
    for argument in options:
        option, _, value = argument.removeprefix("--").partition("=")
        assert option in option_table.BY_NAME, argument
        option_table.BY_NAME[option].read(value)


@every_pod
def test_a_pod_gives_its_node_and_its_schedule(name: str) -> None:
    container = CONTAINERS[name]
    paths = {
        entry["name"]: entry["valueFrom"]["fieldRef"]["fieldPath"] for entry in container["env"] if "valueFrom" in entry
    }
    assert paths == {
        "NODE_NAME": "spec.nodeName",
        "JOBSET_RESTART_ATTEMPT": {
            "jobset": "metadata.labels['jobset.sigs.k8s.io/restart-attempt']",
            "volcano": "metadata.annotations['volcano.sh/job-retry-count']",
        }.get(name, "metadata.annotations['batch.kubernetes.io/job-index-failure-count']"),
    }
    assert PODS[name]["metadata"]["labels"] == {"ftrun/on-node-fault": "cordon"}
    assert PODS[name]["spec"]["restartPolicy"] == "Never"


@every_pod
def test_paths_of_the_options_are_mounted(name: str) -> None:
    pod, container = PODS[name]["spec"], CONTAINERS[name]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    given = dict(one.split("=", 1) for one in container["args"] if one.startswith("--") and "=" in one)
    folder, _, file = given["--annotations"].rpartition("/")
    assert mounts[folder]["downwardAPI"]["items"] == [{"path": file, "fieldRef": {"fieldPath": "metadata.annotations"}}]
    claim = mounts[given["--state-dir"]]["persistentVolumeClaim"]["claimName"]
    assert claim == manifest("state.yaml")["metadata"]["name"]
    assert given["--progress"].rpartition("/")[0] in mounts
    assert mounts["/dev/shm"]["emptyDir"]["medium"] == "Memory"
    assert container["terminationMessagePath"] == TERMINATION_LOG
    assert container["terminationMessagePolicy"] == "File"
    assert duration(given["--stop-grace"]) < pod["terminationGracePeriodSeconds"]


@every_pod
def test_the_number_of_reschedules_is_the_same_in_both_places(name: str) -> None:
    retries = int(PODS[name]["metadata"]["annotations"]["fault-tolerance/job-retry-num"])
    assert 1 <= retries <= 128
    limits = {one: job.get("backoffLimitPerIndex") for one, job in JOBS.items()}
    limits["jobset"] = JOBSET["spec"]["failurePolicy"]["maxRestarts"]
    limits["volcano"] = VOLCANO["spec"]["maxRetry"] - 1  # it fails when the count of restarts has reached maxRetry
    assert retries == limits[name]


# For each group: the name of one of its pods, the variables that Kubernetes adds to it, and the address of the first.
MEMBERS = {
    "group": ("train-2", {"JOB_COMPLETION_INDEX": "2"}, "train-0.train.jobs.svc.cluster.local:29470"),
    "jobset": ("train-node-0-2", {"JOB_COMPLETION_INDEX": "2"}, "train-node-0-0.train.jobs.svc.cluster.local:29470"),
    "volcano": (
        "train-node-2",
        {"VC_TASK_INDEX": "2", "VC_NODE_HOSTS": ",".join(f"train-node-{index}.train" for index in range(4))},
        "train-node-0.train:29470",
    ),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_pods_of_several_nodes_are_a_group(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables come from the manifest, Kubernetes and the kubelet; the Secret is mounted at the default path."""
    host, variables, endpoint = MEMBERS[name]
    pod, container = PODS[name]["spec"], CONTAINERS[name]
    (volume,) = (volume["name"] for volume in pod["volumes"] if "secret" in volume)
    (folder,) = (mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == volume)
    made = re.findall(r"^kubectl create secret generic (\S+) --from-literal=(\w+)=", readme(), re.M)
    assert made == [(pod["volumes"][-1]["secret"]["secretName"], Path(group_config.SECRET).name)]
    assert folder == str(Path(group_config.SECRET).parent)
    (tmp_path / "group").write_text("0123456789abcdef")
    monkeypatch.setattr(group_config, "SECRET", str(tmp_path / "group"))

    environment = variables | {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
    hosts = f"10.0.0.3\t{host}.train.jobs.svc.cluster.local\t{host}\n"
    found, note = group_config.group(option_values.settings({}, environment), environment, host, hosts)
    assert found, note
    assert (found.size, found.rank, found.endpoint) == (4, 2, endpoint)
    command = container["args"][-1]
    assert f"--nnodes={found.size} " in command
    if name != "volcano":
        assert JOBS[name]["completions"] == JOBS[name]["parallelism"] == found.size
        (master,) = re.findall(r"--master-addr=(\S+)", command)
        assert endpoint.startswith(f"{master}.")


def test_the_service_of_the_group_names_its_pods() -> None:
    service, job = documents("group.yaml")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    assert PODS["group"]["spec"]["subdomain"] == service["metadata"]["name"]


def podinfo(name: str) -> str:
    """The annotations as the kubelet writes them in a downward API volume."""
    return "".join(f"{key}={json.dumps(value)}\n" for key, value in PODS[name]["metadata"]["annotations"].items())


@every_pod
def test_ftrun_understands_the_annotations(name: str) -> None:
    found = annotations.read("annotations", podinfo(name))
    assert found.problems == ()
    assert dict(found.texts)["restart-on"] == "hang,fault"


def test_ftrun_starts_with_the_options_of_a_manifest(runs: Runs) -> None:
    name, arguments = "jobset", CONTAINERS["jobset"]["args"]
    options = [one.replace("=/", f"={runs.folder}/") for one in arguments[: arguments.index("--")]]
    (runs.folder / "etc" / "podinfo").mkdir(parents=True)
    (runs.folder / "etc" / "podinfo" / "annotations").write_text(podinfo(name))
    for folder in ("state", "checkpoints"):
        (runs.folder / folder).mkdir()
    run = runs.ends(
        7, *options, "--", "sh", "-c", "echo $MA_SCHEDULE_CNT; exit 7", NODE_NAME="n1", JOBSET_RESTART_ATTEMPT="2"
    )
    assert run.stdout == "3\n"
    assert runs.verdict["node"] == "n1"


# --- the termination message -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["\u00e4\u4e2d\U0001f600" * 30_000, '"\\\n\0' * 50_000])
def test_the_termination_message_is_never_too_long(text: str) -> None:
    fields: dict[str, object] = {"verdict": "failure-limit", "exit_code": 93, "why": text, "last_checkpoint": text}
    content = records.message(fields)
    assert len(content) <= 4096
    assert json.loads(content) | fields == fields
    assert json.loads(content)["exit_code"] == 93
    assert b"\n" not in content


# --- isolating the node ------------------------------------------------------------------------------------------


def check(folder: Path, node: str | None = "n1") -> tuple[int, str]:
    environment = {"PATH": os.environ["PATH"]} | ({} if node is None else {"NODE_NAME": node})
    done = subprocess.run(
        [FOLDER / "npd-check.sh", folder], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.strip()


def verdict(**more: object) -> dict[str, object]:
    fields: dict[str, object] = {"schema": 1, "verdict": "node-fault", "exit_code": 197, "node": "n1", "device": "3"}
    fields |= {"why": 'Xid 79 on "GPU 3"', "schedule_cnt": 1, "time": "2026-01-02T03:04:05.678Z"}
    return fields | more


@pytest.mark.parametrize(("indent", "file"), [(None, "verdict.json"), (1, "verdict-member-3.json")])
def test_the_nodes_own_verdict_is_a_problem(tmp_path: Path, indent: int | None, file: str) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / file).write_text(json.dumps(verdict(), indent=indent))
    code, line = check(tmp_path)
    assert code == 1
    assert line.startswith(str(tmp_path / "train"))
    assert "Xid 79" in line


@pytest.mark.parametrize(
    "content",
    [
        json.dumps(verdict(node="n10")),
        json.dumps(verdict(verdict="hang-limit", exit_code=195)),
        json.dumps(verdict(verdict="failed", why=json.dumps(verdict()))),  # a text that quotes a verdict
        '{"verdict": "node-fa',
    ],
)
def test_any_other_verdict_is_no_problem_of_this_node(tmp_path: Path, content: str) -> None:
    (tmp_path / "verdict.json").write_text(content)
    assert check(tmp_path) == (0, "")


def test_a_check_without_verdicts_succeeds_and_without_a_node_name_is_unknown(tmp_path: Path) -> None:
    assert check(tmp_path) == (0, "")
    assert check(tmp_path / "none") == (0, "")
    assert check(tmp_path, node=None)[0] == 2


@pytest.fixture
def api() -> Iterator[apiserver.Cluster]:
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl here")
    with apiserver.serving() as found:
        yield found


@pytest.fixture
def cordon(api: apiserver.Cluster, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    named = {"cluster": {"server": api.url}, "user": {}, "context": {"cluster": "c", "user": "c"}}
    kubeconfig = {"apiVersion": "v1", "kind": "Config", "current-context": "c"} | {
        f"{kind}s": [{"name": "c", kind: value}] for kind, value in named.items()
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig))
    environment = os.environ | {"KUBECONFIG": str(tmp_path / "kubeconfig"), "HOME": str(tmp_path)}
    process = subprocess.Popen(
        ["sh", FOLDER / "cordon.sh"], env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    )
    yield process
    os.killpg(process.pid, 9)
    process.wait()


def test_the_node_of_a_197_is_cordoned(api: apiserver.Cluster, cordon: subprocess.Popen[bytes]) -> None:
    """With the real kubectl: pods that exist at its start, later ones, and those after the server ended the watch."""
    for name in ("n1", "n2", "n3", "n4", "n5"):
        api.node(name)

    def cordoned() -> list[str]:
        nodes = [o for path, o in api.objects.items() if "/nodes/" in path]
        return sorted(o["metadata"]["name"] for o in nodes if o["spec"].get("unschedulable"))

    def done(pod: str) -> bool:
        found = api.objects[f"/api/v1/namespaces/jobs/pods/{pod}"]
        return bool(found["metadata"]["labels"]["ftrun/on-node-fault"] == "cordoned")

    wait_for(lambda: api.watchers, "a watch")
    api.put("running", "n4", None)
    api.put("hung", "n4", json.dumps(verdict(verdict="hang-limit", exit_code=195, node="n4")))
    api.put("shared", "n4", json.dumps(verdict()))  # ended with the verdict of n1
    api.put("forged", "n4", 'x\nn5 jobs forged "{\\"verdict\\": \\"node-fault\\", \\"node\\": \\"n5\\"}"')
    api.put("quoted", "n4", json.dumps(verdict(verdict="failed", node="n4", why=json.dumps(verdict(node="n4")))))
    api.put("root_cause", "n1", json.dumps(verdict()))
    wait_for(lambda: done("root_cause"), "the node of the root cause")
    assert cordoned() == ["n1"]
    assert api.node("n1")["metadata"]["annotations"] == {"ftrun/node-fault": "jobs/root_cause"}

    api.node("n1")["spec"] = {}  # repaired
    api.end_watches()
    wait_for(lambda: len(api.watchers) > 1, "another watch")
    api.put("nameless", "n2", json.dumps({"verdict": "node-fault", "exit_code": 197}))
    wait_for(lambda: done("nameless"), "the node of a message that names none")
    assert cordoned() == ["n2"]

    (role,) = [d for d in documents("cordon.yaml") if d["kind"] == "ClusterRole"]
    allowed = {(verb, resource) for r in role["rules"] for resource in r["resources"] for verb in r["verbs"]}
    assert api.used <= allowed


# --- the other files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", sorted(FOLDER.glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_valid(script: Path) -> None:
    subprocess.run(["sh", "-n", script], check=True)
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", script], capture_output=True, text=True, check=False)
        assert done.stdout == ""


def test_the_image_has_what_it_installs_and_starts_ftrun_without_a_shell() -> None:
    lines = (FOLDER / "Dockerfile").read_text().splitlines()
    instructions = [line.split() for line in lines if line and not line.startswith("#")]
    copied = [source for line in instructions if line[0] == "COPY" for source in line[1:-1]]
    assert all((HOUSE / source).exists() for source in copied)
    project = tomllib.loads((HOUSE / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    made_of = {"pyproject.toml", project["project"]["readme"], *wheel["packages"], *wheel["shared-data"]}
    assert all(any(Path(part).is_relative_to(source) for source in copied) for part in made_of)
    assert all(line[-1].rstrip("/").endswith(line[1]) for line in instructions if line[0] == "COPY" and len(line) == 3)
    (entry,) = [line for line in lines if line.startswith("ENTRYPOINT")]
    (program,) = json.loads(entry.removeprefix("ENTRYPOINT"))
    (venv,) = re.findall(r"-m venv (\S+)", "\n".join(lines))
    assert program == f"{venv}/bin/ftrun"
    assert re.findall(rf"{venv}/bin/pip install .*\[(.*)\]", "\n".join(lines)) == ["metrics,page"]


def test_the_image_has_every_program_on_its_path(tmp_path: Path) -> None:
    """Run the command that links them, with temporary folders."""
    text = (FOLDER / "Dockerfile").read_text()
    (link,) = re.findall(r"^RUN (mkdir .*?[^\\])$", text, re.M | re.DOTALL)
    (venv,) = re.findall(r"-m venv (\S+)", text)
    scripts = tomllib.loads((HOUSE / "pyproject.toml").read_text())["project"]["scripts"]
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    for name in (*scripts, "python"):
        (tmp_path / "venv" / "bin" / name).touch()
    script = link.replace("/usr/local/bin", f"{tmp_path}/bin").replace(venv, f"{tmp_path}/venv")
    subprocess.run(["sh", "-ec", script], check=True, timeout=60)
    assert {path.name for path in (tmp_path / "bin").iterdir()} == set(scripts)
    assert all(path.is_symlink() and path.exists() for path in (tmp_path / "bin").iterdir())


def readme() -> str:
    return (FOLDER / "README.md").read_text()


def test_the_readme_mentions_every_code_and_every_file() -> None:
    text = readme()
    assert all(re.search(rf"\b{code}\b", text) for code in CODES)
    assert all(path.name in text for path in FOLDER.iterdir() if path.name != "README.md")
