"""The evidence helper without permissions, without py-spy, or blocked: it reports that and replies in time."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ftrun.helpers.evidence.report import KEPT_REPORTS, ReportFolder
from support.evidence_job import NO_PTRACE, READY, EvidenceHelper, Job, ask, need_no_ptrace, needs_spy, request
from support.evidence_job import job as job
from support.runs import carrying, wait_for
from waitproof import children

SLEEP = f"import time\n{READY}time.sleep(600)"
BUSY = f"{READY}while True:\n    pass"
CLOSED = f"import ctypes, time\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE\n{READY}time.sleep(600)"
RENAME = "import ctypes, time\nctypes.CDLL(None).prctl(15, b'a\\xff|`\\n', 0, 0, 0)  # PR_SET_NAME\n"
FORK = f"""import os, sys, time
for number in range(int(sys.argv[1])):
    if os.fork() == 0:
        time.sleep(600)
{READY}time.sleep(600)"""
REAPER = """import ctypes, os, signal, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
root = subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdout=subprocess.PIPE)
print(root.pid, root.stdout.readline().decode(), flush=True)
signal.pause()"""
ORPHAN = """import os, subprocess, sys, time
busy = [sys.executable, '-c', 'while True: pass']
start = f'import os, subprocess; print(subprocess.Popen({busy}, stdout=2).pid, end=" ", flush=True); os._exit(0)'
subprocess.run([sys.executable, '-c', start])
subprocess.run(['env', '-i', sys.executable, '-c', start])
print('are orphans', flush=True)
time.sleep(600)"""
DIES = f"""import os, signal, time
burnt = os.fork()
if burnt == 0:
    zero = os.open('/dev/zero', os.O_RDONLY)
    while time.process_time() < 0.8:
        os.read(zero, 1 << 20)
    signal.pause()
while 'S' not in open(f'/proc/{{burnt}}/stat').read().rpartition(')')[2].split()[0]:
    time.sleep(0.01)
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGUSR1}})
{READY}signal.sigwait({{signal.SIGUSR1}})
os.kill(burnt, signal.SIGKILL)
os.wait()
open('reaped', 'w').close()
time.sleep(600)"""
HANGS = "#!/bin/sh\nexec sleep 600\n"
NOBODY = 65534


def test_without_py_spy_counters_decide(job: Job, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "python").symlink_to(os.path.realpath(sys.executable))  # no py-spy is beside this interpreter
    job.start_asleep(SLEEP)
    there: dict[str, Any] = {"python": str(bare / "python"), "environment": {"PATH": "/nowhere"}}
    answer = ask(job, **there)
    assert answer.result["cleared"] is None
    assert answer.result["why"].startswith("python")
    assert answer.missing == {f"Python stacks of {job.pid}": "py-spy is not installed"}
    assert "py-spy is not installed" in answer.markdown
    busy = job.start(BUSY)
    answer = ask(job, **there, finding={"rule": "idle", "pid": busy})
    assert answer.result["cleared"].endswith("of a core")
    assert answer.process(busy)["moved"] is None


@needs_spy
def test_forbidden_ptrace_is_named(job: Job) -> None:
    need_no_ptrace()
    job.start_asleep(CLOSED, prefix=NO_PTRACE)
    answer = ask(job, NO_PTRACE)
    assert answer.result["cleared"] is None
    [(what, why)] = [line for line in answer.missing.items() if line[0].startswith("Python stacks")]
    assert what == f"Python stacks of {job.pid}"
    assert why.startswith("not permitted: the process belongs to another user or is not dumpable")
    assert answer.missing[f"I/O counters of {job.pid}"] == "not permitted"
    assert "open files of the suspect" in answer.missing
    assert "kernel stacks" in answer.missing


@needs_spy
def test_a_process_of_another_user_is_classified_by_its_cpu_use(job: Job) -> None:
    need_no_ptrace()
    shell = ("setpriv", "--reuid", str(NOBODY), "--clear-groups", "sh", "-c", "echo ready; while :; do :; done")
    job.start("import os, sys\nos.execvp(sys.argv[1], sys.argv[1:])", *shell)
    answer = ask(job, NO_PTRACE, finding={"rule": "idle"})
    assert answer.result["cleared"].endswith("of a core")
    assert answer.process(job.pid)["io"] is None
    assert "unknown" in answer.markdown


@pytest.fixture
def hanging(tmp_path: Path) -> dict[str, str]:
    """An environment with a py-spy that never answers, by which its processes are recognised."""
    folder = tmp_path / "path"
    folder.mkdir()
    (folder / "py-spy").write_text(HANGS)
    (folder / "py-spy").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "TEST_HANGING": str(tmp_path)}


def test_a_py_spy_that_never_answers_delays_nothing_beyond_the_deadline(job: Job, hanging: dict[str, str]) -> None:
    job.start_asleep(FORK, "20")
    answer = ask(job, environment=hanging, timeout=8)  # in which a busy machine also starts the helper
    assert answer.seconds < 40  # 21 processes with 2 s each
    assert answer.result["report"]
    assert answer.result["cleared"] is None
    assert any("py-spy did not answer in time" in why for why in answer.missing.values())
    wait_for(lambda: not carrying(f"TEST_HANGING={hanging['TEST_HANGING']}"), "the end of every py-spy")


@pytest.mark.parametrize(("command", "seconds"), [(["/bin/sleep", "600"], 0.1), (["/bin/cat", "/dev/zero"], 60)])
def test_a_program_that_does_not_end_or_prints_too_much_is_killed(command: list[str], seconds: float) -> None:
    [(number, result)] = children.run([command], 1, seconds, time.monotonic() + 60)
    assert (number, result.killed) == (0, True)
    marks = [os.fsencode(word) for word in command]

    def left() -> list[str]:
        pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        return [pid for pid in pids if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:2] == marks]

    wait_for(lambda: not left(), "its end")


def test_nothing_is_left_of_a_killed_helper(job: Job, hanging: dict[str, str]) -> None:
    job.start_asleep(SLEEP)
    mark = f"TEST_HANGING={hanging['TEST_HANGING']}"
    with EvidenceHelper(request(job), **hanging):
        wait_for(lambda: len(carrying(mark)) > 1, "py-spy")
    wait_for(lambda: not carrying(mark), "the end of every py-spy")


def test_the_reply_is_sent_in_time_without_evidence(job: Job) -> None:
    """The two observations are further apart than the timeout."""
    job.start_asleep(SLEEP)
    answer = ask(job, between=600, timeout=8, given=False)
    assert answer.seconds < 300
    problem = "the processes could not be observed in time"
    assert answer.lines[0] == {"event": "problem", "what": f"whether the job hangs is not known: {problem}"}
    assert (answer.result["cleared"], answer.result["processes"], answer.result["report"]) == (problem, 1, None)


def test_it_ends_when_stdin_ends(job: Job) -> None:
    job.start_asleep(SLEEP)
    with EvidenceHelper(request(job, between=60, timeout=120)) as helper:
        assert (helper.end(), helper.lines) == (0, [])


def test_a_suspect_that_has_ended_is_reported(job: Job) -> None:
    job.start(SLEEP)
    job.processes[0].kill()
    job.processes[0].wait()
    answer = ask(job)
    assert answer.result["cleared"] is None
    assert answer.result["why"] == ""
    assert "its process is gone" in answer.markdown


def test_orphans_of_the_job_are_observed_and_no_foreign_process(job: Job) -> None:
    job.start(REAPER, ORPHAN)
    root, orphan, foreign = map(int, job.first_line.split()[:3])
    try:
        tree = {"rule": "idle", "rank": None, "pid": root}
        answer = ask(job, root=root, finding=tree, between=1)
        assert {p["pid"] for p in answer.document["processes"]} == {root, orphan}
        assert "it works" in answer.result["cleared"]
        answer = ask(job, root=root, finding=tree, excluded=[orphan])
        assert {p["pid"] for p in answer.document["processes"]} == {root}
        assert answer.result["cleared"] is None
    finally:
        os.kill(foreign, signal.SIGKILL)


def test_the_counters_of_a_child_that_has_ended_are_no_work(job: Job) -> None:
    """0.8 s of CPU and gigabytes read, which the parent inherits between the observations."""
    job.start(DIES)
    spy = job.folder / "py-spy"  # called after the first observation
    spy.write_text(f"#!/bin/sh\ntouch '{job.folder}/observed'\nexit 1\n")
    spy.chmod(0o755)
    with EvidenceHelper(request(job, between=5), PATH=f"{job.folder}:{os.environ['PATH']}") as helper:
        wait_for((job.folder / "observed").exists, "the first observation")
        os.kill(job.pid, signal.SIGUSR1)
        wait_for((job.folder / "reaped").exists, "the death of the child")
        answer = helper.answer()
    assert [p["gone"] for p in answer.document["processes"]] == [False, True]
    assert answer.result["cleared"] is None
    assert answer.result["cpu"] < 0.4
    assert answer.result["io"] < 262_144


@needs_spy
def test_undecodable_names_are_escaped(job: Job, tmp_path: Path) -> None:
    script = os.fsencode(tmp_path) + b"/tr\xffain `x` | <b>.py"
    with open(script, "wb") as file:
        file.write(f"{RENAME}{READY}time.sleep(600)".encode())
    job.start_asleep("import os, sys\nos.execv(sys.executable, ['python', sys.argv[1]])", os.fsdecode(script))
    opened = os.fsencode(tmp_path) + b"/out\xff\n# no heading"
    with open(opened, "wb") as file:
        file.write(b"line\n" * 500 + b"```\n# the last \xff\x1b[31m line")
    answer = ask(job, output=[os.fsdecode(opened)])
    assert answer.result["cleared"] is None
    assert next(iter(answer.document["output"].values())).count("\n") == 199
    assert "\n# no heading" not in answer.markdown
    assert "\n````text\nline" in answer.markdown
    assert "\x1b" not in answer.markdown
    json.dumps(answer.document, ensure_ascii=False).encode()  # no half characters


def test_output_that_is_no_regular_file_is_named(job: Job, tmp_path: Path) -> None:
    job.start_asleep(SLEEP)
    os.mkfifo(tmp_path / "fifo")
    answer = ask(job, output=[str(tmp_path / "fifo"), str(tmp_path / "none")])
    assert answer.missing[f"output in {tmp_path}/fifo"] == "it is not a regular file"
    assert "No such file" in answer.missing[f"output in {tmp_path}/none"]


def test_a_report_that_cannot_be_written_is_a_problem(job: Job, tmp_path: Path) -> None:
    job.start_asleep(SLEEP)
    (tmp_path / "file").write_text("")
    answer = ask(job, run_dir=str(tmp_path / "file"))
    assert answer.result["report"] is None
    assert "report could not be written" in answer.lines[0]["what"]


def test_reports_of_earlier_suspicions_are_kept_and_bounded(tmp_path: Path) -> None:
    for number in range(KEPT_REPORTS + 2):
        ReportFolder(str(tmp_path), 2).write(f"report {number}", {"number": number}, {number: "stack"})
    folder = tmp_path / "reports" / "attempt-2"
    kept = [folder / f"report-{number}.md" for number in range(2, KEPT_REPORTS + 2)]
    assert sorted(folder.glob("report-*.md")) == sorted(kept)
    assert (folder / "report.md").read_text() == f"report {KEPT_REPORTS + 1}"
    assert [path.read_text() for path in kept] == [f"report {number}" for number in range(1, KEPT_REPORTS + 1)]
    assert [json.loads(path.with_suffix(".json").read_bytes())["number"] for path in kept] == [
        *range(1, KEPT_REPORTS + 1)
    ]
    assert [path.name for path in folder.glob("stacks/*")] == [f"{KEPT_REPORTS + 1}.txt"]
    assert not list(folder.rglob("*.new"))


@needs_spy
def test_many_processes_are_observed_in_time(job: Job) -> None:
    job.start(FORK, "60")
    answer = ask(job, between=0.5)
    assert answer.seconds < 60
    assert len(answer.document["processes"]) == 1 + 60
    assert answer.process(job.pid)["moved"] is False
