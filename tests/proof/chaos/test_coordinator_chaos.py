"""The check finds two epochs at work around a coordinator that is replaced or suspended; a short chaos finds none."""

from typing import Any

from proof.chaos import coordinator_plan
from proof.chaos.coordinator_plan import FOR_GOOD, KINDS, SHAPES, job
from proof.chaos.group_check import check
from proof.chaos.group_plan import LINK_CUT, MACHINE_LOST, REPLACED, GroupOutcome
from proof.chaos.test_chaos_groups import RECORDS, begun, lines, order, outcome, run, struck

SUSPENDED = "container stopped"


def two_epochs(kind: str, *more: dict[str, Any], ended: float = 5.0) -> GroupOutcome:
    """The ranks of epoch 1 in member 0 end then; those of epoch 2 begin at 3.1 in member 1, where they do step 3."""
    before = (RECORDS[0], order(1), RECORDS[1], *(one | {"mono": one["mono"] + ended - 5.0} for one in RECORDS[2:]))
    after = (RECORDS[0], order(2), RECORDS[1] | {"mono": 3.1}, *RECORDS[2:])
    first, second = run(0)._replace(records=before), run(1)._replace(records=after)
    steps = (
        *lines(*((1, rank, 1, 2, 2.0) for rank in range(2)), *((2, rank, 3, 4, 4.0) for rank in range(2, 4))),
        *more,
    )
    rounds = (*begun(1, 2, 0, 1.9), *(one | {"rank": one["rank"] % 2} for one in begun(2, 4, 2, 3.9)[2:]))
    return outcome(struck=(struck(kind, lasting=6.0),), runs=(first, second), steps=steps, rounds=rounds, lost=())


def late(at: float, step: int = 3) -> dict[str, Any]:
    """A step of epoch 1, of a rank of member 0."""
    return {**lines((1, 0, step, step, at))[0]}


def found(what: str, of: GroupOutcome) -> bool:
    return any(what in wrong for wrong in check(of))


def test_an_epoch_that_begins_while_the_replaced_member_0_works_is_found() -> None:
    assert found("epoch 2 began in 1-0", two_epochs(REPLACED))


def test_ranks_that_were_suspended_until_the_next_epoch_have_done_nothing_beside_it() -> None:
    assert not found("epoch 2 began", two_epochs(SUSPENDED, ended=8.5))
    assert found("epoch 2 began", two_epochs(SUSPENDED, ended=17.0))  # they went on when they were resumed
    assert found("epoch 2 began", two_epochs(LINK_CUT, ended=8.5))


def test_a_rank_that_was_suspended_may_finish_one_step() -> None:
    assert not found("after a step of epoch 2", two_epochs(SUSPENDED, late(8.2), ended=8.5))
    assert found("did step 4", two_epochs(SUSPENDED, late(8.2), late(8.4, 4), ended=8.5))
    assert found("did step 3", two_epochs(REPLACED, late(8.2), ended=8.5))


def test_the_end_of_a_container_that_was_replaced_is_not_that_of_the_new_one() -> None:
    old, new = run(0, code=137, killed=True, began=0.5), run(0, began=3.0)._replace(container=1)
    made = outcome(runs=(new, old), struck=(struck("ftrun killed", mono=4.5),))
    assert made.last == (new,)


def test_a_member_may_end_beside_a_member_0_that_was_suspended_for_long() -> None:
    """It could not reach that, and without it nobody knows of the others."""
    lost = run(1, code=195, records=(*RECORDS[:-1], RECORDS[-1] | {"exit_code": 195}), verdict={"exit_code": 195})
    for lasting, wrong in ((39.0, False), (1.0, True)):
        made = outcome(struck=(struck(SUSPENDED, lasting=lasting),), runs=(run(0), lost), lost=())
        assert found("member 1 ended with 195", made) == wrong


def test_a_job_follows_from_seed_and_index() -> None:
    made = [job(7, index) for index in range(300)]
    assert made == [job(7, index) for index in range(300)]
    kinds = {one.outer[at].fault.kind for one in made for at in range(len(one.outer))}
    assert kinds >= set(KINDS)
    assert {one.shape for one in made} == set(SHAPES)
    assert {one.shares for one in made if one.has(0, [REPLACED])} == {True, False}
    for one in made:
        goes_on = one.shares and (one.shape.least or one.shape.spares)
        assert goes_on or not one.has(0, [MACHINE_LOST])
        assert goes_on or all(each.back for each in one.outer if each.fault.kind in FOR_GOOD)
    assert coordinator_plan.job(7, 1) != coordinator_plan.job(8, 1)
