"""Jobs of groups whose coordinator is lost, replaced while it lives, or suspended, with and without a shared folder.

As in group_plan.py, a job follows from a seed and an index alone.  The timeouts are as short as they can be, so that a
lease of the shared folder lasts 21 s.
"""

import random

from proof.chaos import rank_plan
from proof.chaos.group_plan import (
    ALL_SUSPENDED,
    FOLDER,
    LINK_CUT,
    LOCAL,
    MACHINE_LOST,
    REPLACED,
    TWO_LOST,
    GroupFault,
    GroupJob,
    Shape,
)
from proof.chaos.plan import Fault
from proof.chaos.rank_plan import RankJob

SHAPES = (*(Shape(2), Shape(3)), *(Shape(2, 1), Shape(3, 1), Shape(3, 2), Shape(3, 2)), *(Shape(3, 0, 1),) * 2)
FOR_GOOD = (MACHINE_LOST, "ftrun killed")  # only where another member can take the place
KINDS = (
    *(REPLACED, REPLACED, *FOR_GOOD, TWO_LOST, ALL_SUSPENDED),
    *("container stopped", "container stopped", *FOLDER),
)


def job(seed: int, index: int) -> GroupJob:
    chance = random.Random(f"coordinator:{seed}:{index}")
    shape, shares = chance.choice(SHAPES), chance.random() < 0.75
    elastic = bool(shape.least or shape.spares)
    kinds = [kind for kind in KINDS if shares or kind not in (*FOR_GOOD, *FOLDER)]
    kind = chance.choice([one for one in kinds if elastic or one not in FOR_GOOD])
    outer = [_main(chance, kind, shape, shares)]
    if shares and kind not in FOLDER and chance.random() < 0.35:
        outer.insert(0, _folder(chance, chance.choice(FOLDER)))
    if chance.random() < 0.4:
        outer.append(_beside(chance, shape))
    base = RankJob(
        seed,
        index,
        LOCAL * shape.places,
        chance.randint(100, 200),
        0.1,
        chance.choice((1, 2)),
        chance.choice((4, 7)),
        bool(shape.least) or chance.random() < 0.5,
        False,
        False,
        _options(chance, shape, shares),
        4,
        (),
    )
    return GroupJob(base, shape, False, tuple(outer), shares, True)


def _options(chance: random.Random, shape: Shape, shares: bool) -> tuple[tuple[str, str], ...]:
    given = dict(rank_plan.options(chance, LOCAL, 4))
    for name in ("metrics-file", "on-event", "idle-timeout", "state-dir"):
        given.pop(name, None)
    given |= {"restart-on": "hang,fault,failure", "standby": chance.choice(("off", "off", "1"))}
    given |= {"hang-timeout": chance.choice(("20s", "60s")), "grace": "500ms", "stop-grace": "2s"}
    given |= {"peer-timeout": "5s", "wait-peer": chance.choice(("6s", "20s")) if shape.least else "120s"}
    given |= {"spares": str(shape.spares)} if shape.spares else {}
    # Each container sees the folder at this path, through a file system of its own.
    given |= {"state-dir": "{folder.parent}/state"} if shares else {}
    return tuple(given.items())


def _main(chance: random.Random, kind: str, shape: Shape, shares: bool) -> GroupFault:
    """Of member 0, once the members have had time to become witnesses, mostly."""
    after = round(chance.choice((chance.uniform(0.0, 3.0), *[chance.uniform(4.0, 9.0)] * 3)), 2)
    away = round(chance.uniform(0.0, 4.0), 2)

    def fault(lasting: float = 0.0, *what: str) -> Fault:
        return Fault(kind, "progress", after, round(lasting, 2), chance.choice(what) if what else "")

    if kind in FOLDER:
        return _folder(chance, kind)
    if kind == REPLACED:
        # Without a folder only the end of the old one lets the new one begin, which takes too long to wait for.
        made = fault(chance.uniform(30.0, 42.0), "reached again", "killed") if shares else fault(20.0, "killed")
        return GroupFault(made, 0, away=away)
    if kind == TWO_LOST:
        return GroupFault(fault(), 0, chance.randrange(1, shape.size), chance.choice(("again", "anew")), away)
    if kind in (ALL_SUSPENDED, "container stopped"):
        return GroupFault(fault(chance.uniform(15.0, 40.0), "signals", "freezer"), 0)
    return GroupFault(fault(), 0)


def _folder(chance: random.Random, kind: str) -> GroupFault:
    fault = Fault(kind, "progress", round(chance.uniform(1.0, 6.0), 2), round(chance.uniform(10.0, 40.0), 2))
    return GroupFault(fault._replace(what=chance.choice(("of all", "of member 0"))), 0)


def _beside(chance: random.Random, shape: Shape) -> GroupFault:
    """Another one, soon after."""
    after, short = round(chance.uniform(0.0, 12.0), 2), round(chance.uniform(1.0, 8.0), 2)
    fault = chance.choice(
        (
            Fault("helper killed", "", after, what="messenger"),
            Fault("helper stopped", "", after, short, "messenger"),
            Fault("container stopped", "", after, short, "signals"),
            Fault(LINK_CUT, "", after, short, "silent"),
            Fault("command killed", "", after, what="KILL"),
            Fault("ftrun killed", "", after),
        )
    )
    member = chance.randrange(shape.size) if fault.kind.startswith("helper") else chance.randrange(1, shape.size)
    return GroupFault(fault, member, 0, chance.choice(("again", "anew")), round(chance.uniform(0.0, 3.0), 2))
