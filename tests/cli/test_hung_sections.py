"""Hangs in sections that the hooks open by themselves."""

from support.runs import Runs, python
from support.runs import runs as runs

STEPS = "import time\nfrom ftrun_hooks._section import Automatic\nfor step in range(5): ft.beat(step)\n"
HANG = "with Automatic('torch.save'): time.sleep(600)\n"


def test_given_hang_timeout_applies_in_automatic_sections(runs: Runs) -> None:
    run = runs.run("--hang-timeout", "2s", "--max-restarts", "0", *python(STEPS + HANG))
    assert run.process.returncode == 195, run.log()
    (hang,) = run.named("hang")
    assert (hang["rule"], hang["section"], hang["limit"]) == ("section", "torch.save", 2.0)


def test_section_timeout_applies_in_automatic_sections(runs: Runs) -> None:
    options = ["--hang-timeout", "1h", "--section-timeout", "2s", "--max-restarts", "0"]
    run = runs.run(*options, *python(STEPS + HANG))
    assert run.process.returncode == 195, run.log()
    assert run.named("hang")[0]["limit"] == 2.0


def test_section_of_the_program_keeps_its_timeout(runs: Runs) -> None:
    code = STEPS + "with ft.section('validation', timeout='1h'): time.sleep(3)\n"
    run = runs.run("--hang-timeout", "1s", "--section-timeout", "1s", "--max-restarts", "0", *python(code))
    assert run.process.returncode == 0, run.log()
    assert run.named("suspect") == []
