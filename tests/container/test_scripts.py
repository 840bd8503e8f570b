"""Scripts without `#!` run as execvp(3) runs them: by the shell."""

from pathlib import Path

import pytest

from support.containers import Starter


@pytest.mark.parametrize("by_path", [True, False])
def test_a_script_without_an_interpreter_is_run_by_the_shell(start: Starter, tmp_path: Path, by_path: bool) -> None:
    script = tmp_path / "train-script"
    script.write_text('echo "$0 got $1"; exit 5\n')
    script.chmod(0o755)
    path = start.environment()["PATH"]
    run = start(str(script) if by_path else script.name, "a b", env={"PATH": f"/nowhere:{tmp_path}:{path}"})
    code, out, err = run.finish()
    assert (code, out.decode()) == (5, f"{script} got a b\n"), err
