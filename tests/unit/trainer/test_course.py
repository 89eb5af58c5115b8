"""What a new epoch and a commit make of the work that a rank has open."""

from dataclasses import replace

import torch
from torch import nn

from fdl_api.run import ElcheSpec
from fdl_trainer import ledger, plan
from fdl_trainer.agreed import Control
from fdl_trainer.course import Course
from fdl_trainer.elche import Policy
from fdl_trainer.plan import PlanSpec
from fdl_trainer.session import Session
from fdl_trainer.tail import RankTail, Tail

OVERLAP = PlanSpec(ElcheSpec(anchor=4, max_anchor=16), Policy.CADENCE, overlap=True)
BLOCKING = replace(OVERLAP, overlap=False)


def start(spec: PlanSpec = OVERLAP) -> Control:
    return plan.enter_epoch(plan.create(ledger.create(1000, 10, 1, 0), spec), ("a", "b"), spec)


def committed(control: Control, spec: PlanSpec = OVERLAP) -> Control:
    """The window in work committed with everybody's whole lease."""
    ranks = [
        RankTail(uid, control.quota(uid), sum(span.size for span in control.batches(uid))) for uid in control.members
    ]
    return plan.advance(control, Tail(tuple(ranks)), spec)


def train(course: Course, control: Control, batches: int) -> None:
    for span in course.lease(control)[course.work.batches :][:batches]:
        course.work.finished(span)


def ahead(control: Control, batches: int) -> Course:
    """A rank that has sent its window and trained some of the next."""
    course = Course("a")
    train(course, control, 99)
    course.send()
    train(course, control, batches)
    return course


def test_after_sending_the_window_ahead_is_trained() -> None:
    control, course = start(), Course("a")
    assert (course.window(control), course.left(control), course.lease(control)) == (1, 2, control.batches("a"))
    train(course, control, 2)
    assert course.left(control) == 0
    course.send()
    assert (course.window(control), course.left(control)) == (2, 2)
    assert course.lease(control) == control.batches("a", ahead=True)
    train(course, control, 1)
    control = committed(control)
    course.committed()
    assert (course.window(control), course.left(control)) == (2, 1), "it goes on where it was"


def test_the_place_in_the_learning_rate_schedule_moves_evenly() -> None:
    control, course = start(), Course("a")
    places = [course.samples(control)]
    train(course, control, 1)
    places.append(course.samples(control))
    train(course, control, 1)
    course.send()
    places.append(course.samples(control))
    train(course, control, 1)
    places.append(course.samples(control))
    control = committed(control)
    course.committed()
    assert places == [0, 20, 40, 60] and course.samples(control) == 60


def test_after_a_failed_reduce_what_was_sent_is_sent_again_and_what_came_after_it_is_kept() -> None:
    before = start()
    course = ahead(before, 1)
    sent, work = course.sent, course.work
    after = plan.enter_epoch(before, ("a",), OVERLAP)
    assert course.keeps(before, after, took=False)
    assert course.entered(before, after, took=False) == []
    assert course.sent is sent and course.work is work


def test_what_was_sent_is_open_again_when_nothing_was_trained_since() -> None:
    """The lease may have grown by what the dead held."""
    for spec in (OVERLAP, BLOCKING):
        before = start(spec)
        course = ahead(before, 0)
        sent = course.sent
        assert course.entered(before, plan.enter_epoch(before, ("a",), spec), took=False) == []
        assert course.work is sent and course.sent is None


def test_when_another_rank_holds_the_commit_only_what_came_after_it_is_kept() -> None:
    before = start()
    course = ahead(before, 1)
    work = course.work
    after = plan.enter_epoch(committed(before), ("a", "b"), OVERLAP)
    assert course.keeps(before, after, took=True)
    assert course.entered(before, after, took=True) == []
    assert course.sent is None and course.work is work and course.window(after) == 2


def test_work_of_a_window_that_the_others_committed_meanwhile_is_dropped() -> None:
    """This rank was given up and comes back: its leases are others' now."""
    before = start()
    course = ahead(before, 1)
    others = plan.enter_epoch(before, ("b",), OVERLAP)
    after = plan.enter_epoch(committed(others), ("b", "newcomer", "a"), OVERLAP)
    assert after.batches("a") != before.batches("a", ahead=True)
    assert not course.keeps(before, after, took=True)
    assert course.entered(before, after, took=True) == [2], "it may be handed batches of window 2 again"
    assert not course.work.batches and course.sent is None


def test_work_of_leases_that_others_hold_now_is_void() -> None:
    before = start()
    course = ahead(before, 1)
    after = plan.enter_epoch(plan.enter_epoch(before, ("b",), OVERLAP), ("b", "newcomer", "a"), OVERLAP)
    assert after.batches("newcomer") == before.batches("a")
    assert course.entered(before, after, took=False) == [1, 2]
    assert not course.work.batches and course.sent is None


def test_samples_of_a_skipped_batch_do_not_count() -> None:
    control, course = start(), Course("a")
    spans = control.batches("a")
    course.work.skip()
    course.work.finished(spans[0])
    course.work.finished(spans[1], skipped=3)
    assert (course.work.batches, course.work.samples, course.work.skipped) == (2, 7, 13)


def test_a_script_says_that_a_batch_was_of_no_use() -> None:
    """A run of one process: half of the batches are skipped; they are behind the run and in no average."""
    session = Session()
    session.setup(
        model=lambda: nn.Linear(1, 1),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        dataset=(torch.zeros(80, 1),),
        batch_size=8,
        epochs=1,
    )
    for number, (x,) in enumerate(session):
        if number % 2:
            session.skip("odd")
        session.report(session.model(x).mean())
    assert session._loop is not None
    control = session._loop.replica.control
    assert control.finished and (control.samples, control.ledger.skipped) == (40, 40)
    assert session.samples == 80 and session.progress == 1.0
    session.close()


def overlapped(batches: int) -> Session:
    """A run of one process whose averages are made aside."""
    session = Session()
    session.setup(
        model=lambda: nn.Linear(1, 1),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        dataset=(torch.ones(8 * batches, 1),),
        batch_size=8,
        epochs=1,
    )
    assert session._loop is not None
    replica = session._loop.replica
    replica.spec = replace(replica.spec, overlap=True)
    return session


def test_training_goes_on_while_the_average_is_made_and_the_end_is_the_committed_model() -> None:
    session = overlapped(batches=200)
    loop = session._loop
    assert loop is not None
    ahead = 0
    for (x,) in session:
        ahead += loop.course.sent is not None
        loss = session.model(x).mean()
        session.optimizer.zero_grad()
        loss.backward()
        session.optimizer.step()
        session.report(loss)
    assert ahead > 0 and loop.replica.control.samples == 1600
    tensors = loop.replica.model.tensors()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in session.model.state_dict().items())
    # One rank averages with itself: it has made all 200 steps, whatever was in flight.
    session.close()
    torch.manual_seed(0)
    start = nn.Linear(1, 1)
    assert torch.allclose(session.model.weight, start.weight - 20.0, atol=1e-3)


def test_a_model_that_breaks_goes_on_from_the_average_and_trains_its_samples_again() -> None:
    session = overlapped(batches=100)
    loop = session._loop
    assert loop is not None
    for number, (x,) in enumerate(session):
        if number == 20:
            with torch.no_grad():
                session.model.weight.fill_(float("nan"))
        session.report(session.model(x).mean())
    control = loop.replica.control
    assert control.finished and (control.samples, control.ledger.skipped) == (800, 0)
    assert torch.isfinite(session.model.weight).all()
    session.close()
