"""Fuzzes one target, guided by coverage: `worker.py TARGET SECONDS FOLDER`, started by `python tests/proof/fuzz`.

In FOLDER are `corpus`, which is begun with and grows, and `found`, for what is found.  libFuzzer speaks on stderr.
"""

import hashlib
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

atheris: Any = import_module("atheris")  # of the bench extra, and without types

with atheris.instrument_imports(include=["ftrun", "ftrun_hooks"]):
    from proof.fuzz.findings import Finding, stretched, tried
    from proof.fuzz.seeds import seeds
    from proof.fuzz.targets import TARGETS

LONGEST = 1 << 16  # bytes of an input
SLOW = 20  # s for one


def main(name: str, seconds: str, where: str) -> None:
    folder, target, known = Path(where), TARGETS[name], set[str]()
    for sub in ("corpus", "found"):
        (folder / sub).mkdir()
    begun = seeds(name)
    for number, content in enumerate(begun):
        (folder / "corpus" / f"seed-{number}").write_bytes(content)

    def keep(found: Finding | None) -> None:
        if found is not None and found.where not in known:
            known.add(found.where)
            digest = hashlib.sha1(found.where.encode()).hexdigest()[:10]
            (folder / "found" / digest).write_bytes(found.content)
            (folder / "found" / f"{digest}.txt").write_text(str(found))

    for found in stretched(target, begun):
        keep(found)
    limits = [f"-max_total_time={seconds}", f"-max_len={LONGEST}", f"-timeout={SLOW}", "-rss_limit_mb=1024"]
    atheris.Setup(
        [sys.argv[0], *limits, "-print_final_stats=1", f"-artifact_prefix={folder}/found/", f"{folder}/corpus"],
        lambda content: keep(tried(target, content)),
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
