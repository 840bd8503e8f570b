"""Programs that compute for long without a step: what a look sees of each, recorded for the simulation (limits.py).

    bin/prove hangs record

Each program is compared as a look compares a rank that computes.  The result goes to recorded.json.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ftrun.helpers.evidence import loops, recurrence
from ftrun.helpers.evidence.recurrence import FEW, NOT_FOUND

RECORDED = Path(__file__).parent / "recorded.json"
SECONDS = 6.0  # for one comparison, as in a standstill of a minute and more

_SENTENCES = "words = [f'w{n}' for n in range(2000)]\n"
_SENTENCES += "sentences = [[random.choice(words) for _ in range(25)] for _ in range(5000)]\n"


class Program(NamedTuple):
    """`share`: of the long computations of healthy jobs outside their steps, an assumption; 0: it hangs."""

    name: str
    code: str
    share: float


PROGRAMS = (
    Program("numpy", "import numpy as np\na = np.random.rand(300, 300)\ngo()\nwhile True: np.linalg.svd(a)", 0.2),
    Program(
        "numpy, an element at a time",
        "import numpy as np\na = np.random.rand(1000)\ngo()\n"
        "while True:\n    for i in range(1000): a[i] = a[i] * .9 + .1",
        0.1,
    ),
    Program("a compression", "import zlib\nb = os.urandom(1 << 24)\ngo()\nwhile True: zlib.compress(b)", 0.1),
    Program("a sort", "b = [str(random.random()) for _ in range(500000)]\ngo()\nwhile True: sorted(b)", 0.1),
    Program("JSON", "import json\nb = [{'box': [random.random()] * 4}] * 99999\ngo()\nwhile True: json.dumps(b)", 0.1),
    Program(
        "n-grams of sentences",
        f"from collections import Counter\n{_SENTENCES}go()\nwhile True:\n    seen = Counter()\n"
        "    for s in sentences:\n"
        "        for n in (1, 2, 3, 4): seen.update(tuple(s[i:i + n]) for i in range(len(s) - n + 1))",
        0.1,
    ),
    Program(
        "a tokenizer",
        "import re\nlines = [f'the quick brown fox jumps over {n} lazy dogs' for n in range(20000)]\n"
        "word, seen = re.compile(r'\\w+|\\S'), {}\ngo()\n"
        "while True:\n    for line in lines:\n        for w in word.findall(line): seen.setdefault(w, len(seen))",
        0.1,
    ),
    Program(
        "edit distances of sentences",
        f"{_SENTENCES}def distance(one, other):\n    row = list(range(len(other) + 1))\n"
        "    for i, a in enumerate(one, 1):\n        before, row[0] = row[0], i\n"
        "        for j, b in enumerate(other, 1):\n"
        "            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))\n    return row[-1]\n"
        "go()\nwhile True:\n    for one, other in zip(sentences, sentences[1:]): distance(one, other)",
        0.1,
    ),
    Program(
        "an assignment of boxes",
        "n = 300\ncost = [[random.random() for _ in range(n)] for _ in range(n)]\ngo()\nwhile True:\n"
        "    best, taken = [None] * n, set()\n    for i in range(n):\n"
        "        j = min((j for j in range(n) if j not in taken), key=cost[i].__getitem__)\n"
        "        best[i] = j; taken.add(j)",
        0.097,
    ),
    Program(
        "a search with few numbers",
        "n = 10**9\ngo()\nwhile True:\n    n += 1\n    for d in range(2, 40000):\n        if n % d == 0: break",
        0.003,
    ),
    Program("`spin`", "go()\nwhile True: pass", 0.0),
    Program(
        "`busy`",
        "def arrived(n): return n < 0\ndef back_off(n): return (n * 2 + 1) % 1009\nn = 0\ngo()\n"
        "while not arrived(n): n = back_off(n)",
        0.0,
    ),
    Program("a counter", "n = 0\ngo()\nwhile n >= 0: n += 1", 0.0),
    Program("until a time", "import time\nend = time.time() + 1e9\ngo()\nwhile time.time() < end: pass", 0.0),
)
HEAD = "import os, random\nrandom.seed(1)\ndef go(): os.write(1, b'go\\n')\n"


class Seen(NamedTuple):
    """One comparison.  `still`: it reads and writes nothing meanwhile; `alone`: nothing influences it; `confined`: it
    also changes next to no memory, or is proved to be endless."""

    still: bool
    alone: bool
    confined: bool
    says: str


def observe(program: Program, times: int) -> list[Seen]:
    with tempfile.TemporaryDirectory(prefix="computing-") as folder:
        words = [sys.executable, "-c", HEAD + program.code]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, cwd=folder, env={"OPENBLAS_NUM_THREADS": "1"})
        try:
            assert process.stdout is not None
            process.stdout.readline()
            return [_compared(process.pid) for _ in range(times)]
        finally:
            process.kill()
            process.communicate()


def _compared(pid: int) -> Seen:
    before = loops.read_and_written(pid, pid)
    found = recurrence.compare(pid, pid, SECONDS)
    # The page bound is left out of the second rule, so what influences the thread is not observed there.
    alone = found.reason is None or (found.reason == NOT_FOUND and not found.influence)
    says = found.reason or "its states recur"
    says += f", {found.pages} changing pages" if found.reason == NOT_FOUND else ""
    says += f", {found.influence}" if found.influence else ""
    return Seen(loops.read_and_written(pid, pid) == before, alone, found.confined, says)


def record(times: int, programs: Iterable[Program] = PROGRAMS, path: Path = RECORDED) -> None:
    found = {program.name: [seen._asdict() for seen in observe(program, times)] for program in programs}
    path.write_text(json.dumps({"few": FEW, "seen": found}, indent=1) + "\n")


def recorded(path: Path = RECORDED) -> dict[str, list[Seen]]:
    return {
        name: [Seen(**seen) for seen in all_seen] for name, all_seen in json.loads(path.read_text())["seen"].items()
    }
