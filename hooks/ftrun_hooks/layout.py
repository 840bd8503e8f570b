"""The beat file: the one definition of its bytes, read by both sides.

`$FTRUN_BEAT_DIR/beats` is a header page and then `SLOTS` slots of `SLOT_WORDS` words.  A word is eight bytes in the
machine's own order; an aligned word is stored and loaded whole, so a single word is never torn.  Rank `r` writes slot
`r % SLOTS`, which is free of clashes for any set of ranks that one container can hold.

Times are CLOCK_MONOTONIC in nanoseconds, which all processes of a machine share.  A zero means "never".  A step is kept
as step + 1, so that zero means "none".

Beside it lie `bell` (a FIFO: one byte wakes the supervisor), `touch` (its modification is a beat from any language),
`checkpoint-<rank>` and `fail-<rank>` (text of any length, renamed into place).
"""

from typing import Final

MAGIC: Final = 0x4E55_5254_4600_0001  # "FTRUN", then the version of this layout in the low 16 bits
WORD: Final = 8
SLOTS: Final = 1024

BEATS: Final = "beats"
BELL: Final = "bell"
TOUCH: Final = "touch"
CHECKPOINT: Final = "checkpoint-"
FAIL: Final = "fail-"

# Header, in words from the start of the file.
HEADER_WORDS: Final = 512
H_MAGIC: Final = 0
# The supervisor's next planned look, in ns.  A section whose deadline comes earlier rings the bell, so that the
# supervisor wakes for it; NO_LOOK (it plans none, or is looking just now) makes every section ring.
H_NEXT_LOOK: Final = 1
NO_LOOK: Final = (1 << 63) - 1

# Slot, in words from the start of the slot.
SLOT_WORDS: Final = 64
MAGIC_WORD: Final = 0  # written last when a slot is claimed
PID: Final = 1
START_TICKS: Final = 2  # field 22 of /proc/<pid>/stat: a pid that was used again is somebody else
RANK: Final = 3
CLAIMED_AT: Final = 4
ALIVE_AT: Final = 5  # any beat
MOVED_AT: Final = 6  # a step that advanced, or a beat from the main thread
STEP: Final = 7
CREDIT: Final = 8  # time spent in closed outermost sections since MOVED_AT: it ages nobody
FLAGS: Final = 9
CHECKPOINT_AT: Final = 10
CHECKPOINT_STEP: Final = 11
SEQUENCE: Final = 12  # odd while CREDIT, DEPTH and the section table are being changed
DEPTH: Final = 13  # open sections; those deeper than SECTIONS are counted and not described
REFUSED: Final = 14  # pid of a second process that asked for this rank while its owner lived

DONE: Final = 1
FATAL: Final = 2

# Section table: SECTIONS entries, the outermost first.
SECTIONS: Final = 6
SECTION_TABLE: Final = 16
SECTION_WORDS: Final = 8
S_STARTED: Final = 0
S_TIMEOUT: Final = 1  # nanoseconds; zero: the supervisor's own limit for a section without one
S_NAME: Final = 2
NAME_BYTES: Final = (SECTION_WORDS - S_NAME) * WORD

FILE_BYTES: Final = (HEADER_WORDS + SLOTS * SLOT_WORDS) * WORD


def slot_of(rank: int) -> int:
    """The word at which the slot of `rank` begins."""
    return HEADER_WORDS + (rank % SLOTS) * SLOT_WORDS
