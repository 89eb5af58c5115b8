"""Every position exactly once, whatever dies, joins or dawdles."""

import itertools
import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdl_trainer import ledger
from fdl_trainer.ledger import Ledger, Span

sizes = st.tuples(st.integers(1, 90), st.integers(1, 20), st.integers(1, 4))
"""samples, batch size, data epochs."""


def spans_of(books: Ledger) -> list[Span]:
    return [span for given in (*books.leases, *books.ahead) for span in given.spans]


def check(books: Ledger, committed: Counter[int], skipped: Counter[int]) -> None:
    """Committed, skipped, leased, holes and the untouched rest are a partition of the stream."""
    places = committed + skipped
    assert books.skipped == sum(skipped.values())
    for span in (*books.holes, *spans_of(books), Span(books.cursor, books.total)):
        places.update(range(span.start, span.stop))
    assert places == Counter(range(books.total))
    consumed = sum(committed.values()) + books.skipped
    assert ledger.remaining(books) == books.total - consumed
    assert ledger.finished(books) == (consumed == books.total)
    assert ledger.from_json(json.loads(json.dumps(ledger.to_json(books)))) == books
    holes = books.holes
    assert all(a.stop < b.start or (a.stop == b.start and a.losses != b.losses) for a, b in itertools.pairwise(holes))
    assert not holes or holes[-1].stop < books.cursor or holes[-1].losses


@settings(max_examples=150, deadline=None)
@given(size=sizes, data=st.data())
def test_every_position_is_committed_exactly_once_under_deaths_joins_and_partial_work(
    size: tuple[int, int, int], data: st.DataObject
) -> None:
    samples, batch_size, data_epochs = size
    books = ledger.create(samples, batch_size, data_epochs, seed=0)
    committed: Counter[int] = Counter()
    skipped: Counter[int] = Counter()
    members = ["r0", "r1"]
    born = 2
    for _ in range(2000):
        if ledger.finished(books):
            break
        quotas = {uid: data.draw(st.integers(1, 12), label=f"quota of {uid}") for uid in members}
        books = ledger.lease(books, quotas)
        check(books, committed, skipped)
        assert any(ledger.quota(books, uid) for uid in members), "a window must never be empty while data is left"
        event = data.draw(st.sampled_from(["none", "death", "join"]), label="event")
        if event == "death" and len(members) > 1:
            dead = data.draw(st.sampled_from(members), label="dead")
            members.remove(dead)
            for span in ledger.leased(books, dead):
                if span.losses == ledger.RELEASES:
                    skipped.update(range(span.start, span.stop))
            books = ledger.drop(books, [dead])
        elif event == "join" and len(members) < 6:
            members.append(f"r{born}")
            books = ledger.lease(books, {f"r{born}": 2})
            born += 1
        check(books, committed, skipped)
        done = {}
        for uid in members:
            pieces = ledger.batches(books, uid)
            assert len(pieces) == ledger.quota(books, uid)
            assert all(0 < piece.size <= batch_size for piece in pieces)
            assert all(piece.start // samples == (piece.stop - 1) // samples for piece in pieces)
            done[uid] = data.draw(st.integers(min(1, len(pieces)), len(pieces)), label=f"done by {uid}")
            for piece in pieces[: done[uid]]:
                committed.update(range(piece.start, piece.stop))
        books = ledger.commit(books, done)
        check(books, committed, skipped)
        assert not books.leases
    assert committed + skipped == Counter(range(samples * data_epochs))


@given(size=sizes, data=st.data())
def test_no_more_than_two_passes_are_open_at_once(size: tuple[int, int, int], data: st.DataObject) -> None:
    samples, batch_size, data_epochs = size
    books = ledger.create(samples, batch_size, data_epochs, seed=0)
    for _ in range(12):
        books = ledger.lease(books, {uid: data.draw(st.integers(0, 30)) for uid in ("a", "b", "c")})
        opened = [span.start // samples for span in (*books.holes, *spans_of(books))]
        opened += [(span.stop - 1) // samples for span in (*books.holes, *spans_of(books))]
        assert not opened or max(opened) - min(opened) < ledger.OPEN_EPOCHS
        books = ledger.commit(books, {uid: data.draw(st.integers(0, ledger.quota(books, uid))) for uid in "abc"})


def test_leases_are_contiguous_and_in_member_order() -> None:
    books = ledger.lease(ledger.create(100, 10, 1, 0), {"b": 2, "a": 3})
    assert ledger.leased(books, "b") == (Span(0, 20),)
    assert ledger.leased(books, "a") == (Span(20, 50),)
    assert ledger.batches(books, "a") == [Span(20, 30), Span(30, 40), Span(40, 50)]


def test_what_the_dead_leave_is_leased_first() -> None:
    books = ledger.lease(ledger.create(100, 10, 1, 0), {"a": 2, "dead": 2, "b": 1})
    books = ledger.commit(ledger.drop(books, ["dead"]), {"a": 2, "b": 1})
    assert books.holes == (Span(20, 40, losses=1),)
    books = ledger.lease(books, {"a": 1, "b": 2})
    assert ledger.batches(books, "a") == [Span(20, 30)]
    assert ledger.batches(books, "b") == [Span(30, 40), Span(50, 60)]


def test_the_last_batch_of_a_pass_is_short_and_none_spans_two_passes() -> None:
    books = ledger.lease(ledger.create(25, 10, 3, 0), {"a": 4})
    assert ledger.batches(books, "a") == [Span(0, 10), Span(10, 20), Span(20, 25), Span(25, 35)]


def test_at_the_end_the_rest_is_shared_in_proportion_and_nobody_gets_more_than_is_left() -> None:
    books = ledger.lease(ledger.create(70, 10, 1, 0), {"fast": 20, "slow": 5, "slower": 1})
    assert [ledger.quota(books, uid) for uid in ("fast", "slow", "slower")] == [6, 1, 0]
    assert books.cursor == 70


def test_crumbs_smaller_than_the_cohort_go_into_the_last_window() -> None:
    books = ledger.lease(ledger.create(130, 10, 1, 0), {"a": 8, "b": 4})
    assert [ledger.quota(books, uid) for uid in ("a", "b")] == [9, 4]
    assert ledger.free(books) == 0


def test_undone_work_at_the_cursor_moves_the_cursor_back() -> None:
    """So that ranks that went different ways to the same state hold equal books."""
    start = ledger.create(100, 10, 1, 0)
    books = ledger.commit(ledger.lease(start, {"a": 3}), {"a": 1})
    assert (books.cursor, books.holes) == (10, ())
    assert ledger.release(ledger.lease(books, {"x": 2}), ["x"]) == books


def test_what_kills_its_ranks_is_leased_again_three_times_and_then_skipped() -> None:
    books = ledger.create(60, 10, 1, 0)
    for _ in range(1 + ledger.RELEASES):
        books = ledger.lease(books, {"healthy": 0, "doomed": 2})
        assert ledger.batches(books, "doomed") == [Span(0, 10), Span(10, 20)]
        assert books.skipped == 0
        books = ledger.commit(ledger.drop(books, ["doomed"]), {})
    assert (books.skipped, ledger.remaining(books)) == (20, 40)
    books = ledger.lease(books, {"healthy": 4})
    assert ledger.batches(books, "healthy")[0] == Span(20, 30)


def test_a_rank_that_breaks_on_its_lease_loses_it_and_one_that_was_not_asked_does_not() -> None:
    books = ledger.lease(ledger.create(100, 10, 1, 0), {"broken": 2, "cut short": 3, "a": 1})
    books = ledger.commit(books, {"cut short": 1, "a": 1}, spoiled={"broken"})
    assert books.holes == (Span(0, 20, losses=1), Span(30, 50))


def test_a_lease_ahead_becomes_that_of_the_window_in_work() -> None:
    books = ledger.lease(ledger.create(100, 10, 1, 0), {"a": 2, "b": 1})
    books = ledger.lease(books, {"a": 1, "b": 2}, ahead=True)
    assert ledger.batches(books, "b", ahead=True) == [Span(40, 50), Span(50, 60)]
    books = ledger.commit(books, {"a": 1, "b": 1}, skipped=3)
    assert ledger.batches(books, "b") == [Span(40, 50), Span(50, 60)]
    assert (books.ahead, books.holes, books.skipped) == ((), (Span(10, 20),), 3)
    assert ledger.remaining(books) == 80


def test_less_than_half_a_window_is_not_left_for_a_window_of_its_own() -> None:
    books = ledger.lease(ledger.create(150, 10, 1, 0), {"fast": 8, "slow": 2})
    assert [ledger.quota(books, uid) for uid in ("fast", "slow")] == [12, 3]
    books = ledger.lease(ledger.create(160, 10, 1, 0), {"fast": 8, "slow": 2})
    assert [ledger.quota(books, uid) for uid in ("fast", "slow")] == [8, 2]
    assert ledger.free(books) == 60


@pytest.mark.parametrize(
    ("act", "sentence"),
    [
        (lambda books: ledger.lease(books, {"a": 1}), "rank a has an open lease"),
        (lambda books: ledger.lease(books, {"b": -1}), "must not be negative"),
        (lambda books: ledger.commit(books, {"a": 3}), "reports 3 batches of a lease of 2"),
        (lambda books: ledger.commit(books, {"stranger": 1}), "reports 1 batches of a lease of 0"),
        (lambda books: ledger.create(0, 1, 1, 0), "samples is 0"),
    ],
)
def test_contradictions_are_refused(act: object, sentence: str) -> None:
    books = ledger.lease(ledger.create(100, 10, 1, 0), {"a": 2})
    with pytest.raises(ValueError, match=sentence):
        act(books)  # type: ignore[operator]


def test_the_pass_in_work_is_the_oldest_one_with_open_samples() -> None:
    books = ledger.lease(ledger.create(10, 5, 2, 0), {"a": 1, "b": 2})
    books = ledger.commit(books, {"b": 2})
    assert ledger.data_epoch(books) == 0
    books = ledger.commit(ledger.lease(books, {"a": 2}), {"a": 2})
    assert ledger.finished(books)
    assert ledger.data_epoch(books) == 1


@given(weights=st.lists(st.integers(0, 1000), min_size=1, max_size=50), data=st.data())
def test_apportion_shares_all_seats_within_one_of_the_exact_share(weights: list[int], data: st.DataObject) -> None:
    seats = data.draw(st.integers(0, 2 * sum(weights)))
    shares = ledger.apportion(weights, seats)
    assert sum(shares) == (seats if sum(weights) else 0)
    assert all(
        abs(share - weight * seats / max(sum(weights), 1)) < 1 for share, weight in zip(shares, weights, strict=True)
    )
