"""Which group an ftrun is a member of, by the variables of each platform and by the options; and what is refused."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.config import group_config, option_table, option_values, parsers
from ftrun.config.group_config import Group, group, is_loopback, read_secret
from ftrun.platforms import PlatformMembership, Surroundings, discover, first_host
from support.runs import HOUSE

Texts = Mapping[str, str]
NONE: Texts = {}
SECRET = "0123456789abcdef"
POD = "train-node-0-2"
DOMAIN = "train.default.svc.cluster.local"
HOSTS = f"""# Kubernetes-managed hosts file.
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost
10.1.2.3\t{POD}.{DOMAIN}\t{POD}
"""


@pytest.fixture(autouse=True)
def default_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The path at which a secret needs no option; there is none on this machine."""
    monkeypatch.setattr(group_config, "SECRET", str(tmp_path / "default"))
    return tmp_path / "default"


@pytest.fixture
def secret(tmp_path: Path) -> str:
    (tmp_path / "secret").write_text(SECRET + "\n")
    return str(tmp_path / "secret")


def by_platform(
    environment: Texts, host: str = "h", hosts: str = "", size: int | str = "auto"
) -> PlatformMembership | None:
    return discover(Surroundings(environment, host, hosts, size))


def group_and_note(
    options: Texts, environment: Texts = NONE, host: str = "h", hosts: str = ""
) -> tuple[Group | None, str]:
    return group(option_values.settings(options, environment), environment, host, hosts)


def member(options: Texts = NONE, environment: Texts = NONE, host: str = "h", hosts: str = "") -> Group:
    found, note = group_and_note(options, environment, host, hosts)
    assert note == ""
    assert found is not None
    return found


def error_of(options: Texts, environment: Texts = NONE) -> str:
    with pytest.raises(option_table.ConfigError) as error:
        group_and_note(options, environment)
    (line,) = str(error.value).splitlines()
    return line


# --- platforms --------------------------------------------------------------------------------------------------------

MODELARTS = {
    "MA_NUM_HOSTS": "3",
    "VC_TASK_INDEX": "2",
    "VC_WORKER_NUM": "3",
    "VC_WORKER_HOSTS": "job-worker-0.job,job-worker-1.job,job-worker-2.job",
}
VOLCANO = {"VC_TASK_INDEX": "1", "VK_TASK_INDEX": "1", "VC_NODE_HOSTS": "j-node-0.j,j-node-1.j", "VC_NODE_NUM": "2"}
MASTERED = {"VC_TASK_INDEX": "1", "VC_MASTER_HOSTS": "j-master-0.j", "VC_WORKER_HOSTS": "j-worker-0.j,j-worker-1.j"}
# As Slurm 22.05 sets them: of what a batch script sees, and of what its steps see.
BATCH = {
    "SLURM_JOB_ID": "7",
    "SLURM_NNODES": "2",
    "SLURM_NTASKS": "4",
    "SLURM_NODEID": "0",
    "SLURM_PROCID": "0",
    "SLURM_TASK_PID": "2646",
    "SLURM_JOB_NODELIST": "gpu[003-005,9],b1",
}
STEP = {
    "SLURM_STEP_ID": "1",
    "SLURM_STEPID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "gpu[004-005]",
    "SLURM_PROCID": "2",
    "SLURM_NODEID": "1",
}
TORCH = {"MASTER_ADDR": "node-a", "MASTER_PORT": "29500", "NODE_RANK": "1", "NNODES": "2"}
PET = {"PET_MASTER_ADDR": "node-a", "PET_NODE_RANK": "1", "PET_NNODES": "2"}
INDEXED = {"JOB_COMPLETION_INDEX": "2"}
FIRST = f"train-node-0-0.{DOMAIN}"

Found = PlatformMembership
PLATFORMS = {
    "nothing": ({}, None),
    "ModelArts": (MODELARTS, Found("ModelArts", 3, 2, "job-worker-0.job", "job-worker-0.job")),
    "ModelArts, one host": ({"MA_NUM_HOSTS": "1", "VC_TASK_INDEX": "0"}, Found("ModelArts", 1, 0)),
    "Volcano": (VOLCANO, Found("Volcano", 2, 1, "j-node-0.j", "j-node-0.j")),
    "Volcano, old": ({"VK_TASK_INDEX": "0", "VC_NODE_HOSTS": " a , b "}, Found("Volcano", 2, 0, "a", "a")),
    "Volcano without svc": ({"VC_TASK_INDEX": "1"}, None),
    "Volcano, one host": ({"VC_TASK_INDEX": "0", "VC_NODE_HOSTS": "a.j"}, Found("Volcano", 1, 0, "a.j", "a.j")),
    "Volcano, other roles": ({"VC_TASK_INDEX": "1", "VC_PS_HOSTS": "a,b", "VC_WORKER_HOSTS": "c,d"}, Found("Volcano")),
    "Slurm, a batch script": (BATCH, Found("Slurm's batch script", 1)),
    "Slurm, salloc": (
        {"SLURM_JOB_ID": "7", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "n[1-2]"},
        Found("Slurm's allocation", 1),
    ),
    "Slurm, the step of salloc": (BATCH | STEP | {"SLURM_STEP_ID": "4294967290"}, Found("Slurm's batch script", 1)),
    "Slurm, tasks of a step": (BATCH | STEP, Found("Slurm", 4, 2, "gpu004", "7.1")),
    "Slurm, nodes": (
        {k: v for k, v in BATCH.items() if k != "SLURM_TASK_PID"} | {"SLURM_NODEID": "1"},
        Found("Slurm", 2, 1, "gpu003", "7.0"),
    ),
    "a batch script with variables of torch": (BATCH | TORCH, Found("Slurm's batch script", 1)),
    "torch": (TORCH, Found("MASTER_ADDR", 2, 1, "node-a")),
    "torchrun": (PET, Found("MASTER_ADDR", 2, 1, "node-a")),
    "torch, elastic": (PET | {"PET_NNODES": "1:4"}, Found("MASTER_ADDR", None, 1, "node-a")),
    "torch, ranks": ({"MASTER_ADDR": "a", "RANK": "1", "WORLD_SIZE": "2"}, Found("MASTER_ADDR", None, None, "a")),
    "torch, without a rank": ({"MASTER_ADDR": "a", "NNODES": "2"}, Found("MASTER_ADDR", None, None, "a")),
    "garbage": ({"MA_NUM_HOSTS": "many", "VC_TASK_INDEX": "-1", "VC_NODE_HOSTS": ",", "NODE_RANK": "²"}, None),
}


@pytest.mark.parametrize(("environment", "found"), PLATFORMS.values(), ids=PLATFORMS)
def test_the_variables_of_a_platform_give_the_membership(environment: Texts, found: PlatformMembership | None) -> None:
    assert by_platform(environment) == found


@pytest.mark.parametrize(
    ("host", "rank"), [("j-master-0", 0), ("j-worker-0", 1), ("j-worker-1.j", 2), ("elsewhere", None)]
)
def test_the_master_of_volcano_comes_before_its_workers(host: str, rank: int | None) -> None:
    assert by_platform(MASTERED, host) == PlatformMembership("Volcano", 3, rank, "j-master-0.j", "j-master-0.j")


@pytest.mark.parametrize(
    ("host", "hosts", "first"),
    [
        pytest.param(POD, HOSTS, FIRST, id="as the kubelet writes it"),
        pytest.param(f"{POD}.{DOMAIN}", "", FIRST, id="a host name with its domain"),
        pytest.param(POD, "", "train-node-0-0", id="no hosts file"),
        pytest.param(POD, f"10.1.2.3 x-{POD}.{DOMAIN} # {POD}.other", "train-node-0-0", id="another host"),
        pytest.param(POD, f"10.1.2.3\t{POD}\n", None, id="no subdomain"),
        pytest.param("gpu-17", HOSTS, None, id="the name of the node"),
    ],
)
def test_rank_0_of_an_indexed_job_has_the_domain_of_this_pod(host: str, hosts: str, first: str | None) -> None:
    assert by_platform(INDEXED, host, hosts) == PlatformMembership("Kubernetes", None, 2, first, first or "")


def test_a_jobset_of_several_jobs_numbers_all_pods() -> None:
    jobs = {"JOB_COMPLETION_INDEX": "1", "JOBSET_JOB_INDEX": "2", "JOBSET_REPLICAS": "4"}
    found = by_platform(jobs, "train-node-2-1", "10.0.0.1 train-node-2-1.train train-node-2-1", 8)
    assert found == PlatformMembership("Kubernetes", None, 5, "train-node-0-0.train", "train-node-0-0.train")
    for size in ("auto", 7):
        assert (found := by_platform(jobs, "train-node-2-1", size=size))
        assert found.rank is None
    found = by_platform(jobs | {"JOBSET_COORDINATOR": "train-head-0-0.train"}, "gpu-17", size=8)
    assert found
    assert found.host == "train-head-0-0.train"


def test_the_first_host_of_a_slurm_node_list() -> None:
    first = {
        "b1": "b1",
        "n1,n2": "n1",
        "n[1-2]": "n1",
        "gpu[003-005,9],b1": "gpu003",
        "gpu[9,003-005]-ib": "gpu9-ib",
        "rack[1-2]n[01-04],x": "rack1n01",
    } | dict.fromkeys(("", "n[1-2", "n[]", "n[a-b]", ",n1"))
    assert {nodes: first_host(nodes) for nodes in first} == first


NAMES = sorted({name for environment, _ in PLATFORMS.values() for name in environment} | {"JOBSET_REPLICAS", *INDEXED})
TEXTS = st.one_of(st.sampled_from(["0", "1", "2", "3", "a,b", "n[1-2]", "", "10.0.0.1", "::1", "localhost"]), st.text())
VARIABLES = st.dictionaries(st.sampled_from(NAMES), TEXTS)


@given(VARIABLES, TEXTS, TEXTS)
def test_no_variable_prevents_a_job_that_did_not_ask_for_a_group(environment: Texts, host: str, hosts: str) -> None:
    found, note = group(option_values.settings({}, {}), environment, host, hosts)
    assert "\n" not in note
    if found:
        assert 0 <= found.rank < found.size
        assert found.secret is None
        assert is_loopback(found.endpoint)


@given(VARIABLES, TEXTS, TEXTS, st.sampled_from(["auto", "2", "9"]))
def test_a_group_that_is_asked_for_is_valid_or_refused_in_one_line(
    environment: Texts, host: str, hosts: str, size: str
) -> None:
    options = {"group-size": size, "group-secret-file": __file__}
    try:
        found, note = group(option_values.settings(options, {}), environment, host, hosts)
    except option_table.ConfigError as error:
        found, note = None, str(error)
    assert "\n" not in note
    if found:
        assert 0 <= found.rank < found.size
        assert parsers.endpoint(found.endpoint) == found.endpoint
        assert not found.endpoint.startswith(":")


# --- the platform and the options -------------------------------------------------------------------------------------

LOCAL = {"group-size": "2", "group-rank": "1", "group-endpoint": "127.0.0.1:4000"}
FAR = LOCAL | {"group-endpoint": "node-a:4000"}


@pytest.mark.parametrize(
    ("environment", "endpoint"),
    [(MODELARTS, "job-worker-0.job:29470"), (VOLCANO, "j-node-0.j:29470"), (BATCH | STEP, "gpu004:29470")],
    ids=["ModelArts", "Volcano", "Slurm"],
)
def test_with_a_secret_the_platform_gives_the_rest(
    environment: Texts, endpoint: str, secret: str, default_secret: Path
) -> None:
    found = by_platform(environment)
    assert found
    expected = Group(found.size or 0, found.rank or 0, endpoint, secret, 600.0, found.job, found.source)
    assert member({"group-secret-file": secret}, environment) == expected
    assert member({}, {**environment, "FTRUN_GROUP_SECRET_FILE": secret}) == expected
    default_secret.write_text(SECRET)
    assert member({}, environment) == expected._replace(secret=str(default_secret))
    assert group_and_note({}, {}) == group_and_note({}, INDEXED) == (None, ""), "the secret has no use"


@pytest.mark.parametrize(
    "environment",
    [MODELARTS, VOLCANO, BATCH | STEP, TORCH, MODELARTS | {"VC_TASK_INDEX": "9"}, MODELARTS | {"VC_WORKER_HOSTS": ""}],
    ids=["ModelArts", "Volcano", "Slurm", "torch", "rank out of range", "no endpoint"],
)
def test_a_platform_without_a_secret_makes_no_group_and_says_so(environment: Texts) -> None:
    found, note = group_and_note({}, environment)
    assert found is None
    assert re.fullmatch(r"no group: .* reports \d members, but there is no --group-secret-file", note)
    assert group_and_note({"group-endpoint": ":4000"}, environment) == (None, note)


def test_on_loopback_the_platform_needs_no_secret() -> None:
    found = member({}, TORCH | {"MASTER_ADDR": "localhost"})
    assert (found.size, found.rank, found.endpoint, found.secret) == (2, 1, "localhost:29470", None)
    assert group_and_note({}, TORCH | {"MASTER_ADDR": "localhost", "NODE_RANK": "2"}) == (
        None,
        "no group: --group-rank: 2 (from MASTER_ADDR) is out of range; the ranks are 0 to 1",
    )
    found = member({"group-rank": "0"}, TORCH | {"MASTER_ADDR": "::1"})
    assert found.endpoint == "[::1]:29470"


def test_a_job_of_one_container_is_no_group_and_gets_no_note(secret: str) -> None:
    single = ({"MA_NUM_HOSTS": "1"}, {"NNODES": "2"}, TORCH | {"NNODES": "1"}, TORCH | {"NNODES": "0"})
    for environment in ({}, BATCH, INDEXED, *single):
        assert group_and_note({}, environment) == (None, "")
    for size in ("1", "off"):
        for options in ({}, {"group-secret-file": secret}, {"group-secret-file": "/missing"}, {"group-rank": "7"}):
            assert group_and_note({"group-size": size} | options, MODELARTS) == (None, "")


def test_an_option_replaces_what_the_platform_gives(secret: str) -> None:
    base = {"group-secret-file": secret}
    plain = member(base, MODELARTS)
    for options, part in (
        ({"group-size": "8"}, {"size": 8}),
        ({"group-rank": "0"}, {"rank": 0, "job": ""}),  # the platform's name of the job may be that of the member
        ({"group-endpoint": "10.0.0.9:4000"}, {"endpoint": "10.0.0.9:4000"}),
        ({"group-endpoint": ":4000"}, {"endpoint": "job-worker-0.job:4000"}),
        ({"group-job": "mine"}, {"job": "mine"}),
    ):
        assert member(base | options, MODELARTS) == plain._replace(**part)


def test_an_ftrun_inside_the_command_of_a_member_is_no_member() -> None:
    """It inherits the environment."""
    given = {"FTRUN_GROUP_SIZE": "2", "FTRUN_GROUP_RANK": "0", "FTRUN_GROUP_ENDPOINT": "127.0.0.1:4000"}
    assert member({}, given)
    for environment in (given, TORCH | {"MASTER_ADDR": "localhost"}):
        assert group_and_note({}, environment | {"FTRUN_BEAT_DIR": "/dev/shm/x"}) == (None, "")


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "environment", "line"),
    [
        (LOCAL | {"group-rank": "2"}, {}, "--group-rank: 2 is out of range; the ranks are 0 to 1"),
        (LOCAL | {"group-rank": "auto"}, {}, "--group-rank: the rank among 2 members is not known"),
        ({"group-size": "2", "group-rank": "0"}, {}, "--group-endpoint: the address of rank 0 is not known"),
        ({"group-rank": "0"}, {}, "--group-size: the number of members is not known"),
        (FAR, {}, "--group-secret-file: a secret is needed, because node-a:4000 is not on loopback"),
        (LOCAL | {"group-endpoint": "localhost.example:4000"}, {}, "is not on loopback"),
        (
            {"group-secret-file": "secret"},
            MODELARTS | {"VC_TASK_INDEX": "9"},
            "--group-rank: 9 (from ModelArts) is out of range; the ranks are 0 to 2",
        ),
        (
            {"group-secret-file": "secret"},
            MODELARTS | {"VC_WORKER_HOSTS": ""},
            "--group-endpoint: the address of rank 0 is not known",
        ),
        (
            {"group-secret-file": "secret"},
            TORCH | {"MASTER_ADDR": "a b"},
            "--group-endpoint: 'a b:29470' is not HOST:PORT",
        ),
    ],
)
def test_an_incomplete_or_contradictory_group_is_refused(
    options: dict[str, str], environment: Texts, line: str, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(secret).parent)
    options = {name: value for name, value in options.items() if value != "auto"}
    assert line in error_of(options, environment)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file or directory"),
        ("", "it is empty"),
        (" \n", "it is empty"),
        ("0123456789abcde\n", "it has 15 bytes; a secret has 16 to 65,536"),
        ("x" * 70_000, "it has more than 65536 bytes"),
    ],
)
def test_an_invalid_secret_is_refused(tmp_path: Path, content: str | None, why: str) -> None:
    file = tmp_path / "bad"
    if content is not None:
        file.write_text(content)
    for options in (LOCAL, FAR, {}):
        line = error_of(options | {"group-secret-file": str(file)})
        assert line.startswith(f"--group-secret-file {file}: ")
        assert why in line


def test_a_secret_is_a_regular_file(tmp_path: Path, default_secret: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (str(tmp_path / "pipe"), "/dev/urandom"):
        assert "not a regular file" in error_of(FAR | {"group-secret-file": path})
    assert "Is a directory" in error_of(FAR | {"group-secret-file": str(tmp_path)})
    default_secret.mkdir()
    assert "default: Is a directory" in error_of({}, MODELARTS)


def test_a_secret_without_a_group_is_noted(secret: str) -> None:
    note = "no group: there is a secret, but the number of members is not known; give --group-size N"
    assert group_and_note({"group-secret-file": secret}) == (None, note)


@pytest.mark.parametrize(
    ("size", "environment"), [("auto", {}), ("auto", {"MA_NUM_HOSTS": "1"}), ("1", {}), ("off", {})]
)
def test_spares_without_a_group_are_noted(size: str, environment: Texts) -> None:
    note = "--spares has no effect: there is no group of several members (--group-size)"
    assert group_and_note({"group-size": size, "spares": "4"}, environment) == (None, note)


def test_whitespace_around_a_secret_is_ignored_and_its_path_is_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text(f"\n {SECRET}\r\n")
    assert read_secret(str(tmp_path / "secret")) == SECRET.encode()
    monkeypatch.chdir(tmp_path)  # the messenger has another working directory
    assert member(FAR | {"group-secret-file": "secret"}).secret == str(tmp_path / "secret")


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("group-size", "0", "'0' is not allowed"),
        ("group-size", "two", "'two' is not a whole number"),
        ("group-rank", "-1", "'-1' is not a whole number"),
        ("group-endpoint", "node-a", "'node-a' is not HOST:PORT; write train-0.train:29470"),
        ("group-endpoint", "fd00::1:29470", "is not HOST:PORT"),
        ("group-job", "a\nb", "'a\\nb' is not a name"),
        ("group-job", "é" * 128, "is not a name"),
        ("wait-peer", "off", "'off' is not a duration"),
    ],
)
def test_an_invalid_value_of_an_option_is_refused(option: str, value: str, why: str) -> None:
    line = error_of({option: value})
    assert line.startswith(f"--{option}: ")
    assert why in line


def test_the_variables_of_a_kubernetes_service_are_no_unknown_options() -> None:
    """Kubernetes sets them for a service that is called ftrun-group."""
    names = ("SERVICE_HOST", "SERVICE_PORT", "PORT", "PORT_80_TCP", "PORT_80_TCP_ADDR", "PORT_80_TCP_PROTO")
    assert option_values.settings({}, {f"FTRUN_GROUP_{name}": "tcp://10.0.0.1:80" for name in names})


def test_pid_1_finds_its_group_without_a_name_server(tmp_path: Path) -> None:
    script = (
        "import sys; from ftrun.config import option_values, group_config; import os;"
        "print(group_config.current_group(option_values.settings({}, os.environ))); print('socket' in sys.modules)"
    )
    environment = {"PYTHONPATH": f"{HOUSE}/supervisor", "FTRUN_GROUP_RANK": "1"} | TORCH | {"MASTER_ADDR": "127.0.0.1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert "Group(size=2, rank=1, endpoint='127.0.0.1:29470', secret=None" in done.stdout, done.stderr
    assert done.stdout.endswith("False\n")
