"""What is no way to fail: an undeclared error, and time that grows faster than the input."""

import time
from collections.abc import Iterator, Sequence
from itertools import islice, product
from typing import Final, NamedTuple

from proof.fuzz.targets import Target

SHORT: Final = 1 << 14  # bytes of a stretched input; of
LONG: Final = 1 << 16  # it may take four times as long,
FASTER: Final = 10  # and never so many times
WORTH: Final = 0.5  # s; shorter times are not worth a finding
SEEDS: Final = 3  # that are stretched
PIECES: Final = (
    *(b"\n", b" ", b"\t", b"\0", b"\f", b":", b": ", b",", b";", b"=", b"|", b"/", b"-", b".", b"%", b"#", b"(", b")"),
    *(b"[", b"]", b"[]", b"{", b"}", b'{"a":', b'"', b"'", b'\\"', b"\\", b"\\u0041", b"0", b"9", b"9,", b"0x"),
    *(b"a", b"a ", b"a\n", b"a=1\n", b"a=1 # ", b"A.", b"\xff", b"\xe2\x80\xa8", b"\x1b[0m", b"nccl "),
    *(
        b"watchdog ",
        b"x: 1\n",
        b"1:1 ",
        b'{"event":"hang"}\n',
        b"[[phase]]\n",
        b"80C98002 ",
        b"process name:",
        b"1-9,",
        b"Traceback\n",
        b'  File "',
    ),
)


class Finding(NamedTuple):
    """`where` is one line; the same one is the same finding."""

    where: str
    what: str
    content: bytes

    def __str__(self) -> str:
        size = len(self.content)
        shown = repr(self.content) if size <= 500 else f"{self.content[:200]!r}... ({size} bytes)"
        return f"{self.where}: {self.what}: {shown}"


def tried(target: Target, content: bytes) -> Finding | None:
    """None: it ended well, or as it declares."""
    try:
        target.run(content)
    except target.declared:
        return None
    except Exception as error:
        return Finding(f"{type(error).__name__} in {_place(error)}", str(error)[:200], content)
    return None


def _place(error: BaseException) -> str:
    """The last line of ftrun's own that is on the way to it, else of the target's."""
    trace, places = error.__traceback__, [""]
    while trace is not None:
        places.append(f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}")
        trace = trace.tb_next
    ours = [place for place in places if "/ftrun/" in place]
    return (ours or places)[-1].rpartition("/")[2]


def stretched(target: Target, seeds: Sequence[bytes]) -> Iterator[Finding]:
    """Inputs with one piece again and again, at the beginning, in the middle and at the end of a seed.  One slow one is
    enough."""
    for seed, piece in product(islice((b"", *seeds), SEEDS), PIECES):
        for at in {0, len(seed) // 2, len(seed)}:
            short, long = (seed[:at] + piece * (size // len(piece)) + seed[at:] for size in (SHORT, LONG))
            if (found := tried(target, short)) is not None:
                yield found
            before, after = _seconds(target, short), _seconds(target, long)
            if after > WORTH and after > FASTER * before:
                yield Finding("more than linear", f"{before:.2f} s, and {after:.2f} s for four times as much", long)
                return


def _seconds(target: Target, content: bytes) -> float:
    """Of the processor."""
    began = time.process_time()
    tried(target, content)
    return time.process_time() - began
