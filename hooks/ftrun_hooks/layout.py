"""The beat file: the one definition of its bytes, read by both sides.

`$FTRUN_BEAT_DIR/beats` is a header page and then `SLOTS` slots of `SLOT_WORDS` words.  A word is eight bytes in the
machine's own order; an aligned word is stored and loaded whole, so a single word is never torn.  Rank `r` writes slot
`r % SLOTS`, or the next free one where a living process has that: the slot contains the rank.

Times are CLOCK_MONOTONIC in nanoseconds, which all processes of a machine share.  A zero means "never".  A step is kept
as step + 1, so that zero means "none".

Beside it lie `bell` (a FIFO: one byte wakes the supervisor), `touch` (its modification is a beat from any language),
`request` (opened by a process that changed its user and needs write access here),
`checkpoint-<rank>` and `fail-<rank>` (text of any length, renamed into place; with `.<pid>` for a process that does
not have the slot of its rank), `saved-<rank>` likewise (a line `S VERSION PATH` for each file that the program saved,
`L` for each that it loaded before its first step), `raised-<when>-<pid>` (the exception that ended a Python process:
`_last.py`), `crashed-<when>-<pid>` (the stack of one that a signal ended: `_crash.py`), `lock` (locked by the
supervisor for as long as it lives), and `python`, the folder that comes first on PYTHONPATH: with a link to the
hooks' sitecustomize, so that its bytecode is kept here. Where ranks can recover there are also `ranks.sock`, on which
they reach the supervisor, and the folder `snapshots`. With standbys there is `imports`, a folder of the supervisor's
user alone: `command` is the command line, and a process that runs it leaves `<pid>` with its first heartbeat: what it
has imported (`_report.py`).
"""

from typing import Final

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
RANKS: Final = "ranks.sock"
SNAPSHOTS: Final = "snapshots"
IMPORTS: Final = "imports"
COMMAND: Final = "command"

# Libraries whose import the hooks notice (`core/text/heartbeats.py` says of which of them they see no step).
FRAMEWORKS: Final = ("PyTorch", "MindSpore", "PaddlePaddle", "Keras", "Orbax", "JAX", "TensorFlow")

# Header, in words from the start of the file.
HEADER_WORDS: Final = 512
H_MAGIC: Final = 0
# When the supervisor plans to read the file next, in ns.  A section whose deadline comes earlier rings the bell,
# so that the supervisor wakes for it; NO_LOOK (nothing is planned, or it is reading now) makes every section ring.
H_NEXT_LOOK: Final = 1
NO_LOOK: Final = (1 << 63) - 1
# One word for each of FRAMEWORKS: 1 once a process of the command has imported it.
H_FRAMEWORKS: Final = 2
# For other readers: what the supervisor knows of the touch file.  Zero: a heartbeat, once it is touched.
H_TOUCH: Final = 10
TOUCH_PAST: Final = 1  # it was touched only before the ranks moved by the hooks: no rank
TOUCH_LOST: Final = 2  # it has no name any more
# The last FREEZES periods in which the supervisor was frozen or hang detection paused, each as begin and end in ns: a
# silence in them is not learned from.  An end of zero: no period, or one that is being written.
H_FREEZES: Final = 16
FREEZES: Final = 8

# Slot, in words from the start of the slot.
SLOT_WORDS: Final = 80
MAGIC_WORD: Final = 0  # written last when a slot is claimed
PID: Final = 1
START_TICKS: Final = 2  # field 22 of /proc/<pid>/stat: distinguishes a pid that was reused
RANK: Final = 3
CLAIMED_AT: Final = 4
ALIVE_AT: Final = 5  # a heartbeat without progress; the later of this and MOVED_AT is the last heartbeat
MOVED_AT: Final = 6  # progress: a step that advanced, or a heartbeat from the main thread
STEP: Final = 7
CREDIT: Final = 8  # time spent in closed sections since MOVED_AT, which does not count as silence
FLAGS: Final = 9
CHECKPOINT_AT: Final = 10
CHECKPOINT_STEP: Final = 11
SEQUENCE: Final = 12  # odd while CREDIT, DEPTH and the section table are being changed
DEPTH: Final = 13  # open sections; those deeper than SECTIONS are counted, but have no entry
# The usual time between two progress reports of this rank, without time in sections, learned as it runs.
INTERVALS: Final = 14  # how many there were; written last
USUAL: Final = 15  # the 99th percentile of the last thousand
LONGEST: Final = 16  # the longest of all after the first WARMUP
SLOWEST_START: Final = 17  # the longest of the first WARMUP: compiling, allocating, filling caches
# The outermost section that an exception closed last: where the program failed, if there is no progress after it.
BROKEN_AT: Final = 18
BROKEN_NAME: Final = 19  # NAME_BYTES
# When the program last saved a file with one of its own libraries; `saved-<rank>` lists them.
SAVED_AT: Final = 25
UNRANKED: Final = 26  # 1: this process was given no rank, and RANK is 0; then its ancestors:
PARENTS: Final = 27  # the pids of its parent, of that one's parent, ..., then zeros
PARENTS_KEPT: Final = 5

DONE: Final = 1
FATAL: Final = 2
NO_RANK: Final = 4  # RANK or LOCAL_RANK is set, but is not a number
# From this bit on, in eight bits: 1 + the index in FRAMEWORKS of the one whose calls gave the first heartbeat; 0: the
# program did it itself.
SOURCE_SHIFT: Final = 8

SHORT: Final = 100_000_000  # ns; shorter silences count as this
WARMUP: Final = 10
ENOUGH: Final = 100  # intervals; the supervisor is woken when there were this many
FREEZE: Final = 5_000_000_000  # ns; a silence from this on may have been a freeze
RECORDED_WITHIN: Final = 2_000_000_000  # ns after a freeze, within which the supervisor records it

# Section table: SECTIONS entries, the outermost first.
SECTIONS: Final = 6
SECTION_TABLE: Final = 32
SECTION_WORDS: Final = 8
S_STARTED: Final = 0
S_TIMEOUT: Final = 1  # ns, and the flags.  Zero: the supervisor's own timeout applies, if there is one.
SIDE: Final = 1 << 63  # entered by a thread that does not train: the timeout of the step applies as well
AUTOMATIC: Final = 1 << 62  # entered by the hooks around a call of the program
S_NAME: Final = 2
NAME_BYTES: Final = (SECTION_WORDS - S_NAME) * WORD

FILE_BYTES: Final = (HEADER_WORDS + SLOTS * SLOT_WORDS) * WORD


def slot_of(rank: int) -> int:
    """The word at which the slot of `rank` begins."""
    return HEADER_WORDS + (rank % SLOTS) * SLOT_WORDS
