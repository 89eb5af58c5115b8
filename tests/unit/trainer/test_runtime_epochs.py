"""What a rank may and must do with the epochs that it has heard of."""

from fdl_api.wire import Epoch, EpochCause, EpochMember
from fdl_trainer.epochs import EpochBook


def epoch(number: int, cause: EpochCause, *uids: str, planned: bool = False, previous: int | None = None) -> Epoch:
    members = [EpochMember(uid=uid, member=uid, address="127.0.0.1", cohort="cpu") for uid in uids]
    return Epoch(
        generation=1,
        epoch=number,
        previous=number - 1 if previous is None else previous,
        members=members,
        cause=cause,
        planned=planned,
    )


def in_first(uid: str = "a") -> EpochBook:
    book = EpochBook(uid)
    book.hear(epoch(1, EpochCause.START, "a", "b"))
    book.formed(1)
    book.enter(1)
    return book


def test_a_start_is_entered_at_once() -> None:
    book = EpochBook("a")
    assert book.hear(epoch(1, EpochCause.START, "a"))
    joining = book.joining()
    assert joining is not None and joining.epoch == 1


def test_a_planned_epoch_waits_for_the_confirmation_and_for_its_group() -> None:
    book = in_first()
    book.hear(epoch(2, EpochCause.JOIN, "a", "b", "c", planned=True))
    assert book.ready_for() == 1 and book.immediate() is None
    book.formed(2)
    assert book.ready_for() == 1
    assert not book.hear(epoch(2, EpochCause.JOIN, "a", "b", "c")), "a confirmation is no news"
    assert book.ready_for() == 2 and book.immediate() is None


def test_a_leaver_forms_nothing() -> None:
    book = in_first("b")
    book.hear(epoch(2, EpochCause.LEAVE, "a", planned=True))
    book.hear(epoch(2, EpochCause.LEAVE, "a"))
    assert book.ready_for() == 2 and not book.includes(2)


def test_a_joiner_waits_for_the_confirmation() -> None:
    book = EpochBook("c")
    book.hear(epoch(2, EpochCause.JOIN, "a", "c", planned=True))
    book.formed(2)
    assert book.joining() is None
    book.hear(epoch(2, EpochCause.JOIN, "a", "c"))
    assert book.joining() is not None


def test_a_death_outdates_the_plan_and_frees_whoever_forms_it() -> None:
    book = in_first()
    book.hear(epoch(2, EpochCause.JOIN, "a", "b", "c", planned=True))
    assert book.wanted(2)
    book.hear(epoch(3, EpochCause.DEATH, "a"))
    assert not book.wanted(2) and book.wanted(3)
    immediate = book.immediate()
    assert immediate is not None and immediate.epoch == 3


def test_a_cancelled_number_never_comes_back() -> None:
    book = in_first()
    book.hear(epoch(2, EpochCause.JOIN, "a", "b", "c", planned=True))
    book.cancel(2)
    assert not book.hear(epoch(2, EpochCause.JOIN, "a", "b", "c"))
    assert book.ready_for() == 1 and book.max_heard == 2


def test_the_newest_of_two_deaths_counts() -> None:
    book = in_first()
    book.hear(epoch(2, EpochCause.DEATH, "a", "b"))
    book.hear(epoch(3, EpochCause.DEATH, "a"))
    immediate = book.immediate()
    assert immediate is not None and immediate.epoch == 3


def test_a_rank_that_was_left_out_enters_the_plan_that_takes_it_in_again() -> None:
    book = in_first()
    plan = epoch(4, EpochCause.JOIN, "b", "a", planned=True, previous=3)
    book.hear(plan)
    assert book.immediate() is None, "not confirmed"
    book.hear(plan.model_copy(update={"planned": False}))
    immediate = book.immediate()
    assert immediate is not None and immediate.epoch == 4


def test_a_late_member_enters_the_death_before_the_plan_that_follows_it() -> None:
    book = in_first()
    book.hear(epoch(3, EpochCause.DEATH, "a"))
    book.hear(epoch(4, EpochCause.JOIN, "a", "c", previous=3))
    immediate = book.immediate()
    assert immediate is not None and immediate.epoch == 3


def test_a_suspended_rank_stands_by_and_comes_back_as_a_joiner() -> None:
    book = in_first("b")
    book.hear(epoch(2, EpochCause.SUSPEND, "a"))
    immediate = book.immediate()
    assert immediate is not None and immediate.epoch == 2, "it leaves what it is at"
    assert book.suspends(2) and book.apart(2) and book.suspended
    book.hear(epoch(4, EpochCause.JOIN, "a", "b", planned=True, previous=3))
    assert book.wanted(4), "its group is formed while it stands by"
    book.hear(epoch(4, EpochCause.JOIN, "a", "b", previous=3))
    immediate = book.immediate()
    assert immediate is not None and immediate.epoch == 4
    assert book.apart(4) and not book.suspends(4) and not book.suspended, "it is being taken back"
    book.enter(4)
    book.hear(epoch(5, EpochCause.DEATH, "b"))
    assert not book.apart(5)


def test_the_epoch_right_after_the_one_without_it_is_a_join_too() -> None:
    book = in_first("b")
    book.hear(epoch(2, EpochCause.SUSPEND, "a"))
    book.hear(epoch(3, EpochCause.JOIN, "a", "b", planned=True))
    book.hear(epoch(3, EpochCause.JOIN, "a", "b"))
    immediate = book.immediate()
    assert immediate is not None and immediate.epoch == 3 and book.apart(3)


def test_who_was_not_left_out_is_not_apart() -> None:
    book = in_first("b")
    book.hear(epoch(2, EpochCause.DEATH, "b"))
    assert not book.apart(2) and not book.suspends(2) and not book.suspended
    book.hear(epoch(3, EpochCause.JOIN, "b", "c", planned=True))
    book.hear(epoch(3, EpochCause.JOIN, "b", "c"))
    assert not book.apart(3), "it is a member of the one before, though it has not entered it yet"


def test_a_death_without_this_rank_is_no_suspension() -> None:
    book = in_first("b")
    book.hear(epoch(2, EpochCause.DEATH, "a"))
    assert book.apart(2) and not book.suspends(2)


def test_after_a_suspension_a_death_may_bring_it_back() -> None:
    book = in_first("b")
    book.hear(epoch(2, EpochCause.SUSPEND, "a"))
    book.hear(epoch(3, EpochCause.DEATH, "b"))
    immediate = book.immediate()
    assert immediate is not None and immediate.epoch == 3 and book.apart(3)
