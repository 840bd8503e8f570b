"""The beat file: the one definition of its bytes, read by both sides.

`$FTRUN_BEAT_DIR/beats` is a header page and then `SLOTS` slots of `SLOT_WORDS` words.  A word is eight bytes in the
machine's own order; an aligned word is stored and loaded whole, so a single word is never torn.  Rank `r` writes slot
`r % SLOTS`, or the next free one where a living process has that: the slot says which rank it is.

Times are CLOCK_MONOTONIC in nanoseconds, which all processes of a machine share.  A zero means "never".  A step is kept
as step + 1, so that zero means "none".

Beside it lie `bell` (a FIFO: one byte wakes the supervisor), `touch` (its modification is a beat from any language),
`request` (a process that may not write here opens it to be let in: one that changed its user),
`checkpoint-<rank>` and `fail-<rank>` (text of any length, renamed into place; `.<pid>` more of a process that has not
the slot of its rank), `saved-<rank>` likewise (a line `S VERSION PATH` for each file that the program saved, `L` for
each that it loaded before its first step), `raised-<when>-<pid>` (what a Python died of: `_last.py`), `lock` (locked
by the supervisor for as long as it lives), and `python`, the folder that comes first on PYTHONPATH: with a link to our
sitecustomize, so that its compiled form is kept here, wherever that lies.
"""

from typing import Final

from ._last import RAISED as RAISED

MAGIC: Final = 0x4E55_5254_4600_0002  # "FTRUN", then the version of this layout in the low 16 bits
WORD: Final = 8
SLOTS: Final = 1024

BEATS: Final = "beats"
BELL: Final = "bell"
TOUCH: Final = "touch"
REQUEST: Final = "request"
CHECKPOINT: Final = "checkpoint-"
FAIL: Final = "fail-"
SAVED: Final = "saved-"
SAVED_BYTES: Final = 4000  # of one such file
PYTHON: Final = "python"

# Header, in words from the start of the file.
HEADER_WORDS: Final = 512
H_MAGIC: Final = 0
# The supervisor's next planned look, in ns.  A section whose deadline comes earlier rings the bell, so that the
# supervisor wakes for it; NO_LOOK (it plans none, or is looking just now) makes every section ring.
H_NEXT_LOOK: Final = 1
NO_LOOK: Final = (1 << 63) - 1
# The last FREEZES times in which the supervisor was frozen, or nothing was judged, each as beginning and end in ns: a
# silence in them teaches nothing.  An end of zero: none, or one that is being written.
H_FREEZES: Final = 16
FREEZES: Final = 8

# Slot, in words from the start of the slot.
SLOT_WORDS: Final = 80
MAGIC_WORD: Final = 0  # written last when a slot is claimed
PID: Final = 1
START_TICKS: Final = 2  # field 22 of /proc/<pid>/stat: a pid that was used again is somebody else
RANK: Final = 3
CLAIMED_AT: Final = 4
ALIVE_AT: Final = 5  # a beat that did not move; the later of this and MOVED_AT is the last beat
MOVED_AT: Final = 6  # a step that advanced, or a beat from the main thread
STEP: Final = 7
CREDIT: Final = 8  # time spent in closed sections since MOVED_AT: it ages nobody
FLAGS: Final = 9
CHECKPOINT_AT: Final = 10
CHECKPOINT_STEP: Final = 11
SEQUENCE: Final = 12  # odd while CREDIT, DEPTH and the section table are being changed
DEPTH: Final = 13  # open sections; those deeper than SECTIONS are counted and not described
# How long this rank is usually silent between two movements (time in sections not counted), learned as it runs.
INTERVALS: Final = 14  # how many of them were seen; written last
USUAL: Final = 15  # the 99th percentile of the last thousand
LONGEST: Final = 16  # the longest of all after the first WARMUP
SLOWEST_START: Final = 17  # the longest of the first WARMUP: compiling, allocating, filling caches
# The outermost section that an exception closed last: where the program broke, if nothing moves after it.
BROKEN_AT: Final = 18
BROKEN_NAME: Final = 19  # NAME_BYTES
# When the program saved a file by one of its own libraries; `saved-<rank>` says which.
SAVED_AT: Final = 25
UNRANKED: Final = 26  # 1: nothing told this process a rank, and RANK is 0; then, where it descends from:
PARENTS: Final = 27  # the pids of its parent, of that one's parent, ..., then zeros
PARENTS_KEPT: Final = 5

DONE: Final = 1
FATAL: Final = 2
NO_RANK: Final = 4  # RANK or LOCAL_RANK is set and is no number

SHORT: Final = 100_000_000  # ns; a silence up to this is as this
WARMUP: Final = 10
ENOUGH: Final = 100  # intervals; the supervisor is woken when so many were seen
FREEZE: Final = 5_000_000_000  # ns; a silence from this on may have been a freeze
TELLING: Final = 2_000_000_000  # ns after a freeze, in which the supervisor writes it down

# Section table: SECTIONS entries, the outermost first.
SECTIONS: Final = 6
SECTION_TABLE: Final = 32
SECTION_WORDS: Final = 8
S_STARTED: Final = 0
# Nanoseconds, and the flags.  Zero: the supervisor's own limit for a section without one.  Of an automatic section it
# is no timeout, but the longest earlier one of its name in this process, where there were EARLIER.
S_TIMEOUT: Final = 1
EARLIER: Final = 3
LONG: Final = 300_000_000_000  # ns; no automatic section is overdue before that
SIDE: Final = 1 << 63  # entered by a thread that is not the one that trains: the rank is judged by its steps as well
AUTOMATIC: Final = 1 << 62  # entered by ourselves around a call of the program's
S_NAME: Final = 2
NAME_BYTES: Final = (SECTION_WORDS - S_NAME) * WORD

FILE_BYTES: Final = (HEADER_WORDS + SLOTS * SLOT_WORDS) * WORD


def slot_of(rank: int) -> int:
    """The word at which the slot of `rank` begins."""
    return HEADER_WORDS + (rank % SLOTS) * SLOT_WORDS
