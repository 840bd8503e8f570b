"""The command lines of torchrun that ftrun understands."""

import argparse

import pytest

from ftrun.config.option_table import ConfigError
from ftrun.config.torchrun_options import KNOWN, translate


def translated(line: str, **environment: str) -> str:
    return " ".join(translate(line.split(), environment))


ONE, MEMBER = "--nproc-per-node 1", "--nproc-per-node 1 --group-size 2"
TRANSLATIONS = {
    "--nproc-per-node 4 train.py --lr 1": "--nproc-per-node 4 -- train.py --lr 1",
    "--nproc_per_node=gpu train.py": "--nproc-per-node gpu -- train.py",
    "--standalone train.py": f"{ONE} -- train.py",
    "--grace 1s -m pkg.mod -m": f"--grace 1s {ONE} -- -m pkg.mod -m",
    "--nproc-per-node 2 --no-python ./run": "--nproc-per-node 2 -- ./run",
    "--nproc-per-node 2 --no-python ./run.py": "--nproc-per-node 2 -- env ./run.py",
    "--nproc-per-node 2 --max-restarts 3 --log_dir d t.py": "--nproc-per-node 2 --max-restarts 3 --log-dir d -- t.py",
    "--nproc-per-node 2 --shutdown-timeout 5 t.py": "--nproc-per-node 2 --grace 5s -- t.py",
    "--nnodes 2 --node-rank 1 --master-addr h --master-port 7 t.py": (
        f"{MEMBER} --group-rank 1 --group-endpoint h:7 -- t.py"
    ),
    "--nnodes=2:2 --node_rank=1 --rdzv-backend c10d --rdzv-id a --rdzv-endpoint h t.py": (
        f"{MEMBER} --group-rank 1 --group-job a --group-endpoint h:29400 -- t.py"
    ),
    "--nnodes 1 --node-rank 0 --master-port 29501 t.py": f"{ONE} -- t.py",
    "--rdzv-endpoint [::1]:5 --nnodes 2 t.py": f"{MEMBER} --group-endpoint [::1]:5 -- t.py",
    "--tee 3 --role r --signals-to-handle SIGTERM t.py": f"{ONE} --prefix-ranks -- t.py",
    "-t 0:0,1:2 t.py": f"{ONE} --prefix-ranks -- t.py",
    "-t 0:0 -r 3 --log-dir d t.py": f"{ONE} --log-dir d -- t.py",
    "--rdzv-conf timeout=5 --local-addr a t.py": f"{ONE} -- t.py",
    "--nnodes 2 --rdzv-conf=timeout=5,join_timeout=9,is_host=1 t.py": f"{MEMBER} --wait-peer 9s -- t.py",
    "--wait-peer 1m --nnodes 2 --rdzv-conf timeout=5 t.py": f"--wait-peer 1m {MEMBER} -- t.py",
    # torchrun restarts after failures; with these options alone a command line may also be one of ftrun.
    "--standalone --max-restarts 3 t.py": f"{ONE} --restart-on hang,fault,failure --max-restarts 3 -- t.py",
    "--restart-on hang --standalone --max-restarts 3 t.py": f"--restart-on hang {ONE} --max-restarts 3 -- t.py",
    "--standalone --max-restarts 0 t.py": f"{ONE} --max-restarts 0 -- t.py",
}
OTHERS = ("--max-restarts 3 --log-dir d torchrun --nnodes 2 t.py", "-q python t.py -m", "--no-such t.py")


@pytest.mark.parametrize(("given", "expected"), [*TRANSLATIONS.items(), *((line, line) for line in OTHERS)])
def test_translation(given: str, expected: str) -> None:
    assert translated(given) == expected


def test_variables_count_for_a_command_line_of_torchrun_only() -> None:
    pet = {"PET_NPROC_PER_NODE": "4", "PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "h"}
    expected = "--nproc-per-node 4 --group-size 2 --group-rank 1 --group-endpoint h:29500 -- train.py"
    assert translated("train.py", **pet) == expected
    assert translated("--nproc-per-node 8 train.py", **pet) == expected.replace("node 4", "node 8")
    for other in ("torchrun train.py", "python train.py"):
        assert translated(other, **pet) == other
    assert translated(f"{ONE} t.py", PET_LOG_DIR="d") == f"{ONE} --log-dir d -- t.py"
    assert translated(f"--run-dir r {ONE} t.py", PET_LOG_DIR="d") == f"--run-dir r {ONE} -- t.py"
    assert translated(f"{ONE} t.py", PET_LOG_DIR="d", FTRUN_RUN_DIR="r") == f"{ONE} -- t.py"
    assert translated("-m pkg", FTRUN_NPROC_PER_NODE="8") == "-- -m pkg", "a number that is set elsewhere stays"


REFUSED = {
    "--run-path t.py": "name the file",
    "--logs-specs x t.py": "--log-dir",
    "--duplicate-stdout-filters x t.py": "--local-ranks-filter",
    "--tee 4 t.py": "from 0 to 3",
    "--redirects x t.py": "from 0 to 3",
    "--nnodes 2 --rdzv-conf timeout t.py": "KEY=VALUE",
    "--rdzv-backend etcd t.py": "--group-endpoint",
    "--nnodes": "needs a value",
}


@pytest.mark.parametrize(("given", "alternative"), REFUSED.items())
def test_a_refusal_names_the_alternative(given: str, alternative: str) -> None:
    with pytest.raises(ConfigError, match=alternative):
        translated(given)


@pytest.mark.slow
@pytest.mark.torch
def test_every_option_of_torchrun_is_in_the_table() -> None:
    run = pytest.importorskip("torch.distributed.run", exc_type=ImportError)
    for action in run.get_args_parser()._actions:
        long = [option for option in action.option_strings if option.startswith("--") and "_" not in option]
        if not long or long == ["--help"]:
            continue
        row = KNOWN[long[0].removeprefix("--")]
        takes_value = not isinstance(action, argparse._StoreTrueAction) and action.nargs != 0
        assert row.value == takes_value, row.name
