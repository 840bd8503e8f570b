"""Secrets in command lines are replaced by `***`."""

import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.core.text.redaction import MASK, redact, redact_command
from support.runs import FTHANG, Runs
from support.runs import runs as runs

VALUE = "hunter2hunter2"
NAMED = (
    ("--api-key=V",),
    ("--api-key", "V"),
    ("--token", "-V"),
    ("-token", "V"),
    ("--hf_token=V",),
    ("WANDB_API_KEY=V",),
    ("AWS_SECRET_ACCESS_KEY=V",),
    ("PGPASSWORD=V",),
    ("MYSQL_PWD=V",),
    ("+trainer.accessToken=V",),
    ("logger.apiKey=V",),
    ("--auth", "user:V"),
    ("-H", "Authorization: Bearer V"),
    ("-H", "X-Api-Key: V"),
    ("--header=Cookie: V",),
    ("https://user:V@host/x",),
    ("https://V@host/x",),
    ("postgres://user:V@host:5432/x",),
    ("--data=s3://bucket?token=V&x=1",),
    ("sh", "-c", "export TOKEN=V; exec train --password 'V V' --secret V"),
    ("python", "-c", "login({'token': 'V', \"password\": \"V\"})"),
    ("login", "hf_VVVVV"),
    ("login", "eyJVVVV.VVV"),
    ("-H", "Authorization: token V"),
    ("-H", "Proxy-Authorization: NTLM V"),
    ("-H", "Cookie: a=V; b=V"),
    ("--db-pass", "V"),
    ("DB_PASS=V",),
    ("PGPASS=V",),
    ("HFTOKEN=V",),
    ("--githubtoken", "V"),
    ("ENCRYPTIONKEY=V",),
    ("--wandbkey", "V"),
    ("--jwt", "V"),
    ("https://host/x?X-Amz-Signature=V&sig=V",),
    ("python", "-c", 'os.environ["HF_TOKEN"]="V"; os.environ.setdefault("A_KEY", "V")'),
    ("--tokens=V",),
    ("--password", "--token", "V"),
    ("sh", "-c", 'train --password A\\ V --token "a\\"V"'),
    ("https://user:p@V@host/x",),
    *(
        (prefix + "VVV",)
        for prefix in ("ghr_", "npm_", "pypi-", "AIza", "ya29.", "xapp-", "sk_live_", "dckr_pat_", "ASIA")
    ),
)
SHOWN = (
    *("--tokenizer=gpt2", "--max-tokens=512", "--num_tokens=7", "--keyboard=us", "--author=me", "--monkey=1"),
    *("PWD=/work", "--rdzv-endpoint=host:29400", "tcp://10.0.0.1:2345", "--lr=0.1", "10.0.0.1:29500", "a@b"),
    *("num_key_value_heads=8", "--key-dim=64", "--key_padding_mask=x", "--pad-token-id=0", "--eos_token=</s>"),
    *("--token-dropout=0.1", "--per-token-loss=x", "--text-key=words", "--monitor-key=loss", "--sort_key=a"),
    *("--use_auth_token=True", "--auth-type=basic", "--group-secret-file=secret", "s3://bucket@v/x"),
    *("--model=Basic ResNet", "hf_transformers_model_name_or_path", "/data/sk-some-folder-of-data"),
)


@pytest.mark.parametrize("words", NAMED, ids=lambda words: words[-1])
def test_a_secret_is_recognised_by_its_name(words: tuple[str, ...]) -> None:
    given = [word.replace("V", VALUE) for word in ("train", *words, "--lr", "0.1")]
    for found in (" ".join(redact_command(given)), redact(" ".join(given))):
        assert VALUE not in found
        assert MASK in found
        assert found.startswith("train ")
        assert found.endswith(" --lr 0.1")


@pytest.mark.parametrize("word", SHOWN)
def test_other_values_are_unchanged(word: str) -> None:
    assert redact_command(["--auth=x", word]) == ["--auth=***", word]
    assert redact(word) == word
    for words in (["--use-auth", "--lr", "1"], ["--use-auth-token", "train.py"], ["--pad-token", "x"]):
        assert redact_command(words) == words, "the option after a flag is not its value"
        assert redact(" ".join(words)) == " ".join(words)


@given(st.lists(st.text()))
def test_any_command_line_is_accepted(words: list[str]) -> None:
    assert len(redact_command(words)) == len(words)
    redact(" ".join(words))


def test_no_secret_is_in_a_run_dir(runs: Runs, tmp_path: Path) -> None:
    """Of the command line, that of its children or the environment, after a hang with its report."""
    script = f'{sys.executable} -c "import time; time.sleep(60)" --api-key {VALUE} & exec "$@"'
    words = (*FTHANG, "sleep", "--after", "2", "--steps", "9", "--step-time", "10ms", "--checkpoint-dir", str(tmp_path))
    run = runs.ends(
        195,
        *("-v", "--hang-timeout", "300ms", "--max-restarts", "0"),
        *("--on-exit", f"false --token {VALUE}"),
        *("env", f"MY_PASSWORD={VALUE}", "sh", "-c", script, f"--secret={VALUE}", *words),
        WANDB_API_KEY=VALUE,
        FTRUN_HEAL=f"curl https://user:{VALUE}@host",
    )
    files = [path for path in runs.run_dir.rglob("*") if path.is_file()]
    report = json.loads((runs.run_dir / "reports" / "attempt-1" / "report.json").read_text())
    assert any(MASK in (one["command"] or "") for one in report["processes"])
    assert any(MASK in word for word in run.named("started")[0]["command"])
    assert "false --token ***" in json.dumps(run.named("problem"))
    assert {"events.jsonl", "state.json", "report.md", "run.log"} <= {path.name for path in files}
    found = {**{str(path): path.read_bytes() for path in files}, "stderr": run.stderr.encode()}
    found["verdict"] = json.dumps(runs.verdict).encode()
    assert [name for name, content in found.items() if VALUE.encode() in content] == []
    assert os.listdir(tmp_path)
