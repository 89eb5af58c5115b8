"""Ranks that plan for themselves, whatever dies, joins, leaves or dawdles, train every sample exactly once."""

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fdl_api.run import ElcheSpec
from fdl_trainer import agreed, ledger, plan
from fdl_trainer.agreed import Control
from fdl_trainer.course import Course
from fdl_trainer.elche import Policy
from fdl_trainer.plan import PlanSpec
from fdl_trainer.tail import Flag, RankTail, decode, encode
from fdl_trainer.work import WindowWork

MOST_RANKS = 5


def positions(work: WindowWork | None) -> Counter[int]:
    """What a rank has trained."""
    return Counter(place for span in (work.done if work else []) for place in range(span.start, span.stop))


@dataclass
class Rank:
    """One process. Models are counts: how often each sample is in them."""

    uid: str
    control: Control
    committed: Counter[int] = field(default_factory=Counter)
    live: Counter[int] = field(default_factory=Counter)
    snapshot: Counter[int] = field(default_factory=Counter)
    epoch: int = 0
    leaving: bool = False
    course: Course = field(init=False)

    def __post_init__(self) -> None:
        self.course = Course(self.uid)

    def train(self, batches: int) -> None:
        """Train at most so many batches of the window that is open for this rank."""
        course = self.course
        for span in course.lease(self.control)[course.work.batches :][:batches]:
            course.work.done.append(span)
            self.live.update(range(span.start, span.stop))

    def send(self) -> None:
        """Pack the contribution."""
        self.snapshot = self.live.copy()
        self.course.send()

    def own_tail(self, speed: int) -> RankTail:
        """Its slots."""
        sent = self.course.sent
        assert sent is not None
        return RankTail(
            self.uid,
            batches=sent.batches,
            samples=sent.samples,
            compute_ms=float(1 + sent.batches * speed),
            reduce_ms=2.0,
            flags=Flag.LEAVING if self.leaving else Flag(0),
            digest=agreed.digest(self.control),
        )

    def commit(self, after: Control, average: Counter[int]) -> None:
        """Take a commit in, keeping what was trained since the snapshot."""
        self._move(average, keep=True)
        self.control = after
        self.course.committed()

    def enter(self, donor: "Rank", members: tuple[str, ...], epoch: int, spec: PlanSpec) -> None:
        """The exchange at the start of an epoch."""
        took = donor.control.window > self.control.window or not self.epoch
        after = plan.enter_epoch(donor.control, members, spec)
        keep = self.course.keeps(self.control, after, took=took)
        if took:
            self._move(donor.committed, keep=keep)
        elif not keep:
            self.live = self.committed.copy()
        self.course.entered(self.control, after, took=took)
        self.control, self.epoch = after, epoch

    def _move(self, average: Counter[int], *, keep: bool) -> None:
        since = self.live.copy() if keep else self.snapshot.copy()
        since.subtract(self.snapshot)
        self.committed = average.copy()
        self.live = average.copy()
        self.live.update(since)
        self.live = +self.live


class Cohort(RuleBasedStateMachine):
    """A cohort whose ranks share nothing but reduced tails and the exchange at the start of an epoch."""

    overlap = False

    @initialize(
        samples=st.integers(1, 150), batch_size=st.integers(1, 12), passes=st.integers(1, 3), ranks=st.integers(1, 4)
    )
    def start(self, samples: int, batch_size: int, passes: int, ranks: int) -> None:
        self.spec = PlanSpec(ElcheSpec(anchor=4, max_anchor=16), Policy.CADENCE, self.overlap)
        self.fresh = plan.create(ledger.create(samples, batch_size, passes, 0), self.spec)
        self.epoch = 0
        self.born = 0
        self.stalled: Rank | None = None
        self.ranks: list[Rank] = []
        self.enter([], joiners=ranks)

    def enter(self, survivors: list[Rank], joiners: int = 0) -> None:
        """The highest commit wins; joiners and those that lack it get it from a holder, and work is judged."""
        self.epoch += 1
        fresh = [Rank(f"r{self.born + i}", self.fresh) for i in range(joiners)]
        self.born += joiners
        self.ranks = [*survivors, *fresh]
        members = tuple(rank.uid for rank in self.ranks)
        donor = max(self.ranks, key=lambda rank: (rank.epoch > 0, rank.control.window, rank.epoch))
        source = Rank(donor.uid, donor.control, donor.committed.copy(), epoch=donor.epoch)
        for rank in self.ranks:
            rank.enter(source, members, self.epoch, self.spec)
        assert len({agreed.digest(rank.control) for rank in self.ranks}) == 1

    def reduce(self, reached: list[Rank]) -> None:
        """All have sent; those of ``reached`` get the result, the others fail or die in it."""
        tails = [encode(rank.own_tail(1 + i), i, len(self.ranks)) for i, rank in enumerate(self.ranks)]
        tail = decode([sum(column) for column in zip(*tails, strict=True)], [rank.uid for rank in self.ranks])
        assert tail.agreed, "ranks planned differently"
        average = self.ranks[0].committed.copy()
        for rank in self.ranks:
            average.update(positions(rank.course.sent))
        before = self.ranks[0].control
        after = plan.advance(before, tail, self.spec)
        for rank in reached:
            if after is not before:
                rank.commit(after, average)
            else:
                assert not rank.course.work.batches
                rank.course.give_up()

    @property
    def finished(self) -> bool:
        return all(rank.control.finished for rank in self.ranks)

    def advance_all(self, data: st.DataObject | None) -> None:
        """Everybody trains, closes its window, and perhaps goes ahead."""
        for rank in self.ranks:
            if rank.course.sent is None:
                left = rank.course.left(rank.control)
                least = min(left, 1) if not rank.course.work.batches else 0
                rank.train(data.draw(st.integers(least, left), label=f"{rank.uid} does") if data else left)
                rank.send()
            if self.overlap and data and not rank.leaving:
                rank.train(data.draw(st.integers(0, 3), label=f"{rank.uid} goes ahead by"))

    @rule(data=st.data())
    def window(self, data: st.DataObject) -> None:
        """A window commits; once all is done, nothing happens any more."""
        if not self.finished:
            self.advance_all(data)
            self.reduce(self.ranks)

    @precondition(lambda self: len(self.ranks) > 1)
    @rule(data=st.data(), inside=st.booleans())
    def death(self, data: st.DataObject, inside: bool) -> None:
        """A rank dies: in the reduce, which some of the survivors complete, or anywhere else."""
        dead = data.draw(st.sampled_from(self.ranks), label="dead")
        if inside and not self.finished:
            self.advance_all(data)
            self.reduce([rank for rank in self.ranks if data.draw(st.booleans(), label=f"{rank.uid} got it")])
        else:
            for rank in self.ranks:
                rank.train(data.draw(st.integers(0, 2), label=f"{rank.uid} does"))
                if self.overlap and rank.course.sent is None and data.draw(st.booleans(), label=f"{rank.uid} sends"):
                    rank.send()
                    rank.train(data.draw(st.integers(0, 2), label=f"{rank.uid} goes ahead by"))
        self.enter([rank for rank in self.ranks if rank is not dead])

    @precondition(lambda self: len(self.ranks) > 1 and self.stalled is None)
    @rule(data=st.data())
    def false_death(self, data: st.DataObject) -> None:
        """A rank that lives is given up; it keeps what it has and may come back."""
        self.stalled = data.draw(st.sampled_from(self.ranks), label="stalled")
        if not self.finished and data.draw(st.booleans(), label="in the reduce"):
            self.advance_all(data)
            self.reduce([rank for rank in self.ranks if rank is not self.stalled])
        self.enter([rank for rank in self.ranks if rank is not self.stalled])

    @precondition(lambda self: self.stalled is not None and not self.finished and len(self.ranks) < MOST_RANKS)
    @rule(data=st.data())
    def back(self, data: st.DataObject) -> None:
        """It comes back with its old state, into a cohort that has gone on, or not."""
        assert self.stalled is not None
        rank, self.stalled = self.stalled, None
        rank.train(data.draw(st.integers(0, 2), label="did meanwhile"))
        self.enter([*self.ranks, rank])

    @precondition(lambda self: not self.finished and len(self.ranks) < MOST_RANKS)
    @rule(data=st.data(), joiners=st.integers(1, 2))
    def join(self, data: st.DataObject, joiners: int) -> None:
        """At a boundary."""
        self.advance_all(data)
        self.reduce(self.ranks)
        if not self.finished:
            self.enter(self.ranks, joiners)

    @precondition(lambda self: not self.finished and len(self.ranks) > 1)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """A rank finishes its batch, is counted, and goes."""
        leaver = data.draw(st.sampled_from(self.ranks), label="leaver")
        if leaver.course.sent is not None and leaver.course.work.batches:
            self.window(data)  # the average in flight comes first
        if self.finished:
            return
        leaver.leaving = True
        self.advance_all(data)
        self.reduce(self.ranks)
        assert leaver.control.quota(leaver.uid) == leaver.control.quota(leaver.uid, ahead=True) == 0
        self.enter([rank for rank in self.ranks if rank is not leaver])

    @invariant()
    def models_are_what_the_books_say(self) -> None:
        if not hasattr(self, "ranks"):
            return
        for rank in self.ranks:
            books = rank.control.ledger
            consumed = books.total - ledger.remaining(books)
            assert max(rank.committed.values(), default=1) == 1
            assert sum(rank.committed.values()) == rank.control.samples == consumed - books.skipped
            assert rank.live == rank.committed + positions(rank.course.sent) + positions(rank.course.work)
            assert rank.committed == self.ranks[0].committed

    def teardown(self) -> None:
        """The rest of the run."""
        if not getattr(self, "ranks", None) or not self.ranks[0].control.members:
            return
        for _ in range(2000):
            if self.finished:
                break
            self.advance_all(None)
            self.reduce(self.ranks)
            self.models_are_what_the_books_say()
        assert self.finished
        books = self.ranks[0].control.ledger
        assert sum(self.ranks[0].committed.values()) == books.total - books.skipped


class OverlappingCohort(Cohort):
    """The same where training goes on during the reduce."""

    overlap = True


SETTINGS = settings(
    max_examples=40, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestBlocking = Cohort.TestCase
TestBlocking.settings = SETTINGS
TestOverlap = OverlappingCohort.TestCase
TestOverlap.settings = SETTINGS
