"""The group of an ftrun: from each platform, from the options, from both; and what is refused."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.config import group_config, option_table, parsers
from ftrun.config.group_config import Group, group, is_loopback, read_secret
from ftrun.platforms.base import Membership, Surroundings
from ftrun.platforms.slurm import first_host
from ftrun.platforms.table import discover
from support.refusals import refusal
from support.runs import HOUSE

SECRET = "0123456789abcdef"
POD = "train-node-0-2"
DOMAIN = "train.default.svc.cluster.local"
HOSTS = f"""# Kubernetes-managed hosts file.
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost
10.1.2.3\t{POD}.{DOMAIN}\t{POD}
"""


def membership(environment: Mapping[str, str], host: str, hosts: str, size: int | str = "auto") -> Membership | None:
    return discover(Surroundings(environment, host, hosts, size))


@pytest.fixture(autouse=True)
def no_secret_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(group_config, "SECRET", str(tmp_path / "by itself"))


@pytest.fixture
def secret(tmp_path: Path) -> str:
    (tmp_path / "secret").write_text(SECRET + "\n")
    return str(tmp_path / "secret")


def member(
    words: Mapping[str, str] = {}, environment: Mapping[str, str] = {}, host: str = "h", hosts: str = ""
) -> Group | None:
    """The group, without a note."""
    found, note = group_and_note(words, environment, host, hosts)
    assert note == ""
    return found


def group_and_note(
    words: Mapping[str, str] = {}, environment: Mapping[str, str] = {}, host: str = "h", hosts: str = ""
) -> tuple[Group | None, str]:
    return group(option_table.settings(words, environment), environment, host, hosts)


def error_of(words: Mapping[str, str], environment: Mapping[str, str] = {}) -> str:
    with pytest.raises(option_table.ConfigError) as error:
        group_and_note(words, environment)
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

MEMBERSHIPS = {
    "nothing": ({}, None),
    "ModelArts": (MODELARTS, Membership("ModelArts", 3, 2, "job-worker-0.job", "job-worker-0.job")),
    "ModelArts, one host": ({"MA_NUM_HOSTS": "1", "VC_TASK_INDEX": "0"}, Membership("ModelArts", 1, 0)),
    "Volcano": (VOLCANO, Membership("Volcano", 2, 1, "j-node-0.j", "j-node-0.j")),
    "Volcano, old": (
        {"VK_TASK_INDEX": "0", "VC_NODE_HOSTS": " a , b "},
        Membership("Volcano", 2, 0, "a", "a"),
    ),
    "Volcano without svc": ({"VC_TASK_INDEX": "1"}, None),
    "Volcano, one host": (
        {"VC_TASK_INDEX": "0", "VC_NODE_HOSTS": "a.j"},
        Membership("Volcano", 1, 0, "a.j", "a.j"),
    ),
    "Volcano, others": (
        {"VC_TASK_INDEX": "1", "VC_PS_HOSTS": "a,b", "VC_WORKER_HOSTS": "c,d"},
        Membership("Volcano"),
    ),
    "Slurm, a batch script": (BATCH, Membership("Slurm's batch script", 1)),
    "Slurm, salloc": (
        {"SLURM_JOB_ID": "7", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "n[1-2]"},
        Membership("Slurm's allocation", 1),
    ),
    "Slurm, salloc's own step": (
        BATCH | STEP | {"SLURM_STEP_ID": "4294967290"},
        Membership("Slurm's batch script", 1),
    ),
    "Slurm, tasks of a step": (BATCH | STEP, Membership("Slurm", 4, 2, "gpu004", "7.1")),
    "Slurm, nodes": (
        {k: v for k, v in BATCH.items() if k != "SLURM_TASK_PID"} | {"SLURM_NODEID": "1"},
        Membership("Slurm", 2, 1, "gpu003", "7.0"),
    ),
    "a batch script with torch's": (BATCH | TORCH, Membership("Slurm's batch script", 1)),
    "torch": (TORCH, Membership("MASTER_ADDR", 2, 1, "node-a")),
    "torch's own": (PET, Membership("MASTER_ADDR", 2, 1, "node-a")),
    "torch, elastic": (PET | {"PET_NNODES": "1:4"}, Membership("MASTER_ADDR", None, 1, "node-a")),
    "torch, ranks": (
        {"MASTER_ADDR": "a", "RANK": "1", "WORLD_SIZE": "2"},
        Membership("MASTER_ADDR", None, None, "a"),
    ),
    "torch, a script's": ({"MASTER_ADDR": "a", "NNODES": "2"}, Membership("MASTER_ADDR", None, None, "a")),
    "garbage": ({"MA_NUM_HOSTS": "many", "VC_TASK_INDEX": "-1", "VC_NODE_HOSTS": ",", "NODE_RANK": "²"}, None),
}


@pytest.mark.parametrize(("environment", "found"), MEMBERSHIPS.values(), ids=MEMBERSHIPS)
def test_membership_from_the_platform(environment: Mapping[str, str], found: Membership | None) -> None:
    assert membership(environment, "h", "") == found


@pytest.mark.parametrize(
    ("host", "rank"), [("j-master-0", 0), ("j-worker-0", 1), ("j-worker-1.j", 2), ("elsewhere", None)]
)
def test_volcano_master_precedes_its_workers(host: str, rank: int | None) -> None:
    assert membership(MASTERED, host, "") == Membership("Volcano", 3, rank, "j-master-0.j", "j-master-0.j")


@pytest.mark.parametrize(
    ("host", "hosts", "first"),
    [
        pytest.param(POD, HOSTS, FIRST, id="as the kubelet writes it"),
        pytest.param(f"{POD}.{DOMAIN}", "", FIRST, id="a host name with its domain"),
        pytest.param(POD, "", "train-node-0-0", id="nothing known"),
        pytest.param(POD, f"10.1.2.3 x-{POD}.{DOMAIN} # {POD}.other", "train-node-0-0", id="another's"),
        pytest.param(POD, f"10.1.2.3\t{POD}\n", None, id="no subdomain"),
        pytest.param("gpu-17", HOSTS, None, id="the node's name"),
    ],
)
def test_rank_0_of_an_indexed_job_has_a_derived_name(host: str, hosts: str, first: str | None) -> None:
    assert membership(INDEXED, host, hosts) == Membership("Kubernetes", None, 2, first, first or "")


def test_ranks_continue_over_the_jobs_of_a_jobset() -> None:
    jobs = {"JOB_COMPLETION_INDEX": "1", "JOBSET_JOB_INDEX": "2", "JOBSET_REPLICAS": "4"}
    found = membership(jobs, "train-node-2-1", "10.0.0.1 train-node-2-1.train train-node-2-1", 8)
    assert found == Membership("Kubernetes", None, 5, "train-node-0-0.train", "train-node-0-0.train")
    for size in ("auto", 7):
        assert (found := membership(jobs, "train-node-2-1", "", size))
        assert found.rank is None
    coordinated = membership(jobs | {"JOBSET_COORDINATOR": "train-head-0-0.train"}, "gpu-17", "", 8)
    assert coordinated
    assert coordinated.host == "train-head-0-0.train"


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("b1", "b1"),
        ("n1,n2", "n1"),
        ("n[1-2]", "n1"),
        ("gpu[003-005,9],b1", "gpu003"),
        ("gpu[9,003-005]-ib", "gpu9-ib"),
        ("rack[1-2]n[01-04],x", "rack1n01"),
        ("", None),
        ("n[1-2", None),
        ("n[]", None),
        ("n[a-b]", None),
        (",n1", None),
    ],
)
def test_first_host_of_a_slurm_list(nodes: str, first: str | None) -> None:
    assert first_host(nodes) == first


NAMES = sorted(
    {name for environment, _ in MEMBERSHIPS.values() for name in environment} | {"JOBSET_REPLICAS"} | set(INDEXED)
)
TEXTS = st.one_of(st.sampled_from(["0", "1", "2", "3", "a,b", "n[1-2]", "", "10.0.0.1", "::1", "localhost"]), st.text())


@given(st.dictionaries(st.sampled_from(NAMES), TEXTS), TEXTS, TEXTS)
def test_no_environment_of_a_platform_prevents_the_job(environment: dict[str, str], host: str, hosts: str) -> None:
    """Where no group was requested, no environment is a reason to refuse the job."""
    found, note = group(option_table.settings({}, {}), environment, host, hosts)
    assert "\n" not in note
    if found:
        assert 0 <= found.rank < found.size
        assert found.secret is None
        assert is_loopback(found.endpoint)


@given(st.dictionaries(st.sampled_from(NAMES), TEXTS), TEXTS, TEXTS, st.sampled_from(["auto", "2", "9"]))
def test_requested_group_is_valid_or_refused_in_one_line(
    environment: dict[str, str], host: str, hosts: str, size: str
) -> None:
    words = {"group-size": size, "group-secret-file": str(HOUSE / "supervisor" / "ftrun" / "messages" / "helpers.py")}
    try:
        found, note = group(option_table.settings(words, {}), environment, host, hosts)
    except option_table.ConfigError as error:
        found, note = None, str(error)
    assert "\n" not in note
    if found:
        assert 0 <= found.rank < found.size
        assert parsers.endpoint(found.endpoint) == found.endpoint
        assert not found.endpoint.startswith(":")


# --- the platform and the options -------------------------------------------------------------------------------------


def test_group_from_options_alone() -> None:
    words = {"group-size": "2", "group-rank": "1", "group-endpoint": "127.0.0.1:4000"}
    assert member(words) == Group(2, 1, "127.0.0.1:4000", None, 600.0, "", "options")
    assert member(words | {"group-job": "mine", "wait-peer": "90s"}) == Group(
        2, 1, "127.0.0.1:4000", None, 90.0, "mine", "options"
    )


@pytest.mark.parametrize(
    ("environment", "endpoint"),
    [(MODELARTS, "job-worker-0.job:29470"), (VOLCANO, "j-node-0.j:29470"), (BATCH | STEP, "gpu004:29470")],
    ids=["ModelArts", "Volcano", "Slurm"],
)
def test_group_from_a_secret_and_the_platform(environment: Mapping[str, str], endpoint: str, secret: str) -> None:
    found = membership(environment, "h", "")
    assert found
    expected = Group(found.size or 0, found.rank or 0, endpoint, secret, 600.0, found.job, found.source)
    assert member({"group-secret-file": secret}, environment) == expected
    assert member({}, {**environment, "FTRUN_GROUP_SECRET_FILE": secret}) == expected


def test_secret_at_its_default_path_needs_no_option(tmp_path: Path) -> None:
    (tmp_path / "by itself").write_text(SECRET)
    found = member({}, MODELARTS)
    assert found
    assert found.secret == str(tmp_path / "by itself")
    assert member({}, {}) is None  # nothing to use it for
    assert member({}, INDEXED) is None


def test_size_on_kubernetes_comes_from_the_manifest(secret: str) -> None:
    environment = INDEXED | {"FTRUN_GROUP_SIZE": "4", "FTRUN_GROUP_SECRET_FILE": secret}
    assert member({}, environment, POD, HOSTS) == Group(4, 2, f"{FIRST}:29470", secret, 600.0, FIRST, "Kubernetes")


@pytest.mark.parametrize(
    "environment",
    [MODELARTS, VOLCANO, BATCH | STEP, TORCH, MODELARTS | {"VC_TASK_INDEX": "9"}, MODELARTS | {"VC_WORKER_HOSTS": ""}],
    ids=["ModelArts", "Volcano", "Slurm", "torch", "nonsense", "no endpoint"],
)
def test_group_that_was_not_requested_needs_a_secret(environment: Mapping[str, str]) -> None:
    """What ran before there were groups runs on, and is group_and_note."""
    found, note = group_and_note({}, environment)
    assert found is None
    assert re.fullmatch(r"no group: .* reports \d members, but there is no --group-secret-file", note)
    assert group_and_note({"group-endpoint": ":4000"}, environment) == (None, note)


def test_group_on_loopback_from_the_platform_alone() -> None:
    found = member({}, TORCH | {"MASTER_ADDR": "localhost"})
    assert found
    assert (found.size, found.rank, found.endpoint, found.secret) == (2, 1, "localhost:29470", None)
    nobody, note = group_and_note({}, TORCH | {"MASTER_ADDR": "localhost", "NODE_RANK": "2"})
    assert nobody is None
    assert note == "no group: --group-rank: 2 (from MASTER_ADDR) is out of range; the ranks are 0 to 1"


@pytest.mark.parametrize(
    "environment",
    [{}, BATCH, {"MA_NUM_HOSTS": "1"}, INDEXED, {"NNODES": "2"}, TORCH | {"NNODES": "1"}, TORCH | {"NNODES": "0"}],
    ids=["nothing", "batch script", "one host", "a sweep", "a size only", "one", "none"],
)
def test_single_member_gets_no_note(environment: Mapping[str, str]) -> None:
    assert group_and_note({}, environment) == (None, "")


@pytest.mark.parametrize("size", ["1", "off"])
def test_group_of_one_is_no_group(size: str, secret: str) -> None:
    for words in ({}, {"group-secret-file": secret}, {"group-secret-file": "/missing"}, {"group-rank": "7"}):
        assert group_and_note({"group-size": size} | words, MODELARTS) == (None, "")


def test_options_take_precedence_over_the_platform(secret: str) -> None:
    base = {"group-secret-file": secret}
    for words, part in (
        ({"group-size": "8"}, {"size": 8}),
        ({"group-rank": "0"}, {"rank": 0, "job": ""}),  # the platform's name of the job may be the member's own
        ({"group-endpoint": "10.0.0.9:4000"}, {"endpoint": "10.0.0.9:4000"}),
        ({"group-endpoint": ":4000"}, {"endpoint": "job-worker-0.job:4000"}),
        ({"group-job": "mine"}, {"job": "mine"}),
    ):
        plain = member(base, MODELARTS)
        assert plain
        assert member(base | words, MODELARTS) == plain._replace(**part)


def test_ipv6_address_gets_brackets() -> None:
    assert (found := member({"group-rank": "0"}, TORCH | {"MASTER_ADDR": "::1"}))
    assert found.endpoint == "[::1]:29470"


def test_nested_ftrun_is_no_member() -> None:
    """An ftrun inside of another, which hands its environment down."""
    given = {"FTRUN_GROUP_SIZE": "2", "FTRUN_GROUP_RANK": "0", "FTRUN_GROUP_ENDPOINT": "127.0.0.1:4000"}
    assert member({}, given)
    for environment in (given, TORCH | {"MASTER_ADDR": "localhost"}):
        assert group_and_note({}, environment | {"FTRUN_BEAT_DIR": "/dev/shm/x"}) == (None, "")


def test_group_options_are_options_of_the_job() -> None:
    names = {option.name for option in option_table.OPTIONS if option.name.startswith("group-")}
    assert {*names, "wait-peer"} <= set(option_table.JOB_OPTIONS)


# --- what is refused --------------------------------------------------------------------------------------------------

LOCAL = {"group-size": "2", "group-rank": "1", "group-endpoint": "127.0.0.1:4000"}
FAR = LOCAL | {"group-endpoint": "node-a:4000"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (LOCAL | {"group-rank": "2"}, "--group-rank: 2 is out of range; the ranks are 0 to 1"),
        (
            {"group-size": "2", "group-endpoint": "127.0.0.1:4000"},
            "--group-rank: the rank among 2 members is not known",
        ),
        ({"group-size": "2", "group-rank": "0"}, "--group-endpoint: the address of rank 0 is not known"),
        ({"group-size": "2", "group-rank": "0", "group-endpoint": ":4000"}, "--group-endpoint: the address of rank 0"),
        ({"group-rank": "0"}, "--group-size: the number of members is not known"),
        ({"group-endpoint": "a:4000"}, "--group-size: the number of members is not known"),
        (FAR, "--group-secret-file: a secret is needed, because node-a:4000 is not on loopback"),
        (LOCAL | {"group-endpoint": "localhost.example:4000"}, "is not on loopback"),
        (LOCAL | {"group-endpoint": "127.0.0.1.example:4000"}, "is not on loopback"),
    ],
)
def test_impossible_group_is_refused(words: dict[str, str], says: str) -> None:
    assert says in error_of(words)


def test_contradictory_platform_is_refused_where_a_group_is_requested(secret: str) -> None:
    words = {"group-secret-file": secret}
    line = error_of(words, MODELARTS | {"VC_TASK_INDEX": "9"})
    assert line == "--group-rank: 9 (from ModelArts) is out of range; the ranks are 0 to 2"
    assert "--group-endpoint: the address of rank 0 is not known" in error_of(
        words, MODELARTS | {"VC_WORKER_HOSTS": ""}
    )
    assert "--group-endpoint: 'a b:29470' is not HOST:PORT" in error_of(words, TORCH | {"MASTER_ADDR": "a b"})
    assert "--group-rank: the rank among" in error_of({"group-size": "2"}, BATCH)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file or directory"),
        ("", "it is empty"),
        (" \n", "it is empty"),
        ("0123456789abcde\n", "it has 15 bytes; a secret has 16 to 65,536"),
        ("x" * 70_000, "it has more than 65536 bytes"),
    ],
)
@pytest.mark.parametrize("words", [LOCAL, FAR, {}], ids=["loopback", "far", "nothing else"])
def test_invalid_secret_is_refused(tmp_path: Path, words: dict[str, str], content: str | None, says: str) -> None:
    file = tmp_path / "bad"
    if content is not None:
        file.write_text(content)
    line = error_of(words | {"group-secret-file": str(file)})
    assert line.startswith(f"--group-secret-file {file}: ")
    assert says in line


def test_secret_has_to_be_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (str(tmp_path / "pipe"), "/dev/urandom"):
        assert "not a regular file" in error_of(FAR | {"group-secret-file": path})
    assert "Is a directory" in error_of(FAR | {"group-secret-file": str(tmp_path)})
    (tmp_path / "by itself").mkdir()
    assert "by itself: Is a directory" in error_of({}, MODELARTS)


def test_secret_without_a_group_is_noted(secret: str) -> None:
    assert group_and_note({"group-secret-file": secret}) == (
        None,
        "no group: there is a secret, but the number of members is not known; give --group-size N",
    )


def test_whitespace_around_a_secret_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text(f"\n {SECRET}\r\n")
    assert read_secret(str(tmp_path / "secret")) == SECRET.encode()
    monkeypatch.chdir(tmp_path)  # the messenger is elsewhere
    assert (found := member(FAR | {"group-secret-file": "secret"}))
    assert found.secret == str(tmp_path / "secret")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--group-size", "0"], "--group-size: '0' is not allowed"),
        (["--group-size", "two"], "--group-size: 'two' is not a whole number"),
        (["--group-size", "-1"], "--group-size: '-1' is not a whole number"),
        (["--group-rank", "-1"], "--group-rank: '-1' is not a whole number"),
        (["--group-endpoint", "node-a"], "--group-endpoint: 'node-a' is not HOST:PORT; write train-0.train:29470"),
        (["--group-endpoint", "node-a:0"], "is not HOST:PORT"),
        (["--group-endpoint", "node-a:00"], "is not HOST:PORT"),
        (["--group-endpoint", "fd00::1:29470"], "is not HOST:PORT"),
        (["--group-endpoint", "tcp://node-a:29470"], "is not HOST:PORT"),
        (["--group-secret-file", ""], "--group-secret-file: the value is empty"),
        (["--group-job", ""], "--group-job: '' is not a name"),
        (["--group-job", "a\nb"], "--group-job: 'a\\nb' is not a name"),
        (["--group-job", "é" * 128], "is not a name"),
        (["--wait-peer", "off"], "--wait-peer: 'off' is not a duration"),
        (["--group-sise", "2"], "--group-size"),
    ],
)
def test_bad_group_option_is_one_line(tmp_path: Path, options: list[str], says: str) -> None:
    assert says in refusal(tmp_path, *options, "touch", "started")


def test_service_variables_of_kubernetes_are_ignored() -> None:
    """For one that is called ftrun-group."""
    names = ("SERVICE_HOST", "SERVICE_PORT", "PORT", "PORT_80_TCP", "PORT_80_TCP_ADDR", "PORT_80_TCP_PROTO")
    assert option_table.settings({}, {f"FTRUN_GROUP_{name}": "tcp://10.0.0.1:80" for name in names})


def test_current_group_imports_no_socket(tmp_path: Path) -> None:
    """As PID 1 calls it: without a name server, and without a module that could ask one."""
    script = (
        "import sys; from ftrun.config import option_table, group_config; import os;"
        "print(group_config.current_group(option_table.settings({}, os.environ))); print('socket' in sys.modules)"
    )
    environment = {"PYTHONPATH": f"{HOUSE}/supervisor", "FTRUN_GROUP_RANK": "1"} | TORCH | {"MASTER_ADDR": "127.0.0.1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert "Group(size=2, rank=1, endpoint='127.0.0.1:29470', secret=None" in done.stdout, done.stderr
    assert done.stdout.endswith("False\n")
