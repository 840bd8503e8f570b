"""Fuzz the code that reads input of others; findings are printed and kept."""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from proof.fuzz.targets import TARGETS
from support.measured import Measured, save
from support.runs import HOUSE

WORKER: Final = HOUSE / "tests" / "proof" / "fuzz" / "worker.py"
STARTING: Final = 600  # s at most until it fuzzes
KEPT: Final = HOUSE / "build" / "fuzz"


class Result(NamedTuple):
    """`edges`: of the code under test, that were covered.  `found`: a line each."""

    name: str
    executions: int
    seconds: float
    edges: int | None
    found: list[str]


def main() -> int:
    parser = argparse.ArgumentParser("bin/prove fuzz", description=__doc__)
    parser.add_argument("--for", dest="seconds", type=int, default=60, metavar="SECONDS", help="a target [%(default)s]")
    parser.add_argument("--keep", type=Path, default=KEPT, metavar="FOLDER", help="for the findings [%(default)s]")
    parser.add_argument("--dry", action="store_true", help="publish nothing")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"[all of {', '.join(TARGETS)}]")
    given = parser.parse_args()
    if unknown := [name for name in given.targets if name not in TARGETS]:
        parser.error(f"no such target: {', '.join(unknown)}")
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's `&` has the first one ignored
        signal.signal(number, signal.default_int_handler)
    results = []
    try:
        for name in given.targets or TARGETS:
            results.append(fuzzed(name, given.seconds, given.keep))
            print(*row(results[-1])[:4], sep="\t", flush=True)
            for line in results[-1].found:
                print("FOUND", line, flush=True)
    except KeyboardInterrupt:
        return 130
    if not given.targets and not given.dry:
        print(save("reliability", section(results, given.seconds)))
    return 1 if any(result.found for result in results) else 0


def fuzzed(name: str, seconds: int, kept: Path) -> Result:
    """Run the target in a process of its own, with a temp folder of its own that is removed afterwards."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ft-") as temporary:
        folder = Path(temporary) / "work"
        folder.mkdir()
        with (folder / "log").open("w+b") as stream:
            process = subprocess.Popen(
                [sys.executable, str(WORKER), name, str(seconds), str(folder)],
                env=os.environ | {"TMPDIR": temporary},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
            try:
                code = process.wait(seconds + STARTING)
            except subprocess.TimeoutExpired:
                code = 1
            finally:
                process.kill()
                process.wait()
            stream.seek(0)
            log = stream.read().decode(errors="replace")
        found = [path.read_text() for path in sorted((folder / "found").glob("*.txt"))]
        found += [f"{path.name}: see {kept}" for path in sorted((folder / "found").glob("*-*"))]
        if code and not found:
            found = [f"the fuzzer ended with {code}: {log[-1000:]}"]
        if found and (folder / "found").is_dir():
            shutil.copytree(folder / "found", kept / name, dirs_exist_ok=True)
    runs, edges = re.findall(r"stat::number_of_executed_units: *(\d+)", log), re.findall(r"\bcov: (\d+)", log)
    executions = int(runs[-1]) if runs else 0
    return Result(name, executions, time.monotonic() - began, int(edges[-1]) if edges else None, found)


def row(result: Result) -> tuple[str, ...]:
    edges = "" if result.edges is None else f"{result.edges:,}"
    return (
        f"`{result.name}`",
        TARGETS[result.name].what,
        f"{result.executions:,}",
        f"{result.seconds:.0f}",
        edges,
        str(len(result.found)),
    )


def section(results: list[Result], seconds: int) -> Measured:
    total = sum(result.executions for result in results)
    return Measured(
        name="30-fuzz",
        title="Fuzzing of all code that reads foreign input",
        made_by="bin/prove fuzz" + (f" --for {seconds}" if seconds != 60 else ""),
        before=(
            "Each target is a function of bytes in `tests/proof/fuzz/targets.py` that declares the errors which it may "
            "raise. [Atheris](https://github.com/google/atheris) mutates real samples, guided by the coverage of "
            "ftrun's own code; before that, samples are lengthened by repeated pieces, to find run times that grow "
            "faster than the input. A finding is any other error, a failed assertion of the target, 20 s for one "
            "input, or 1 GiB of memory.",
        ),
        head=("target", "input", "executions", "seconds", "edges", "findings"),
        rows=tuple(row(result) for result in results),
        after=(
            f"In total there were {total:,} executions and {sum(len(result.found) for result in results)} findings. "
            "The findings of earlier runs are fixed; `tests/proof/fuzz/test_found.py` tries them in every test run.",
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
