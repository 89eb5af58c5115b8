"""Which batches of a rank count for which window, whatever happens on the way. Pure but for the clocks of the work.

A rank trains the window in work, *sends* it (packs its contribution; from then on it may not change) and, where
averaging overlaps with training, goes on with the window ahead. A commit takes what was sent. What a new epoch does to
work that is not committed is in :meth:`Course.entered`; the reasons are in docs/protocol.md.
"""

from dataclasses import dataclass, field

from fdl_trainer.agreed import Control
from fdl_trainer.ledger import Span
from fdl_trainer.work import WindowWork


@dataclass
class Course:
    """The uncommitted work of one rank.

    Attributes:
        uid: the rank.
        work: what was done in the window that is being trained.
        sent: what was done in the window in work, once it is sent and its average is under way; else None.
    """

    uid: str
    work: WindowWork = field(default_factory=WindowWork)
    sent: WindowWork | None = None

    def window(self, control: Control) -> int:
        """Number of the window that is being trained."""
        return control.window + 1 + (self.sent is not None)

    def lease(self, control: Control) -> list[Span]:
        """All micro-batches of the window that is being trained."""
        return control.batches(self.uid, ahead=self.sent is not None)

    def left(self, control: Control) -> int:
        """Micro-batches of them that are not done yet."""
        return control.quota(self.uid, ahead=self.sent is not None) - self.work.batches

    def samples(self, control: Control) -> float:
        """Samples behind the run, and this rank's part of what is planned in the windows that are open for it."""
        quota = control.quota(self.uid, ahead=self.sent is not None)
        part = min(1.0, self.work.batches / quota) if quota else 0.0
        sent = control.planned_samples() if self.sent is not None else 0
        return control.consumed + sent + part * control.planned_samples(ahead=self.sent is not None)

    def send(self) -> WindowWork:
        """Close the window in work; what is trained from now on belongs to the one ahead."""
        assert self.sent is None
        self.sent, self.work = self.work, WindowWork()
        return self.sent

    def committed(self) -> None:
        """What was sent is part of a commit."""
        self.sent = None

    def give_up(self) -> None:
        """The work of all open windows is void."""
        self.work, self.sent = WindowWork(), None

    def keeps(self, before: Control, after: Control, *, took: bool) -> bool:
        """Whether the work that is open survives a new epoch: whether it is still of this rank's leases.

        Args:
            before: state that the work was done under.
            after: state of the new epoch.
            took: another rank's newer commit was taken over, or this rank had no state of the running training.
        """
        if not took:
            if self.sent is None:
                return self.work.is_prefix_of(after.batches(self.uid))
            sent = self.sent.is_prefix_of(after.batches(self.uid))
            return sent and self.work.is_prefix_of(after.batches(self.uid, ahead=True))
        # What was sent is in that commit, or void. What came after it belongs to the window that is in work now.
        next_one = self.sent is not None and after.window == before.window + 1
        return next_one and self.work.is_prefix_of(after.batches(self.uid))

    def entered(self, before: Control, after: Control, *, took: bool) -> list[int]:
        """Go on in a new epoch; whether work is kept is :meth:`keeps`.

        Work that was sent and not committed is sent again as it was. If nothing was trained since, it is open again,
        because the lease may have grown.

        Returns:
            The open windows in which this rank gave up batches that it may be handed again.
        """
        kept = self.keeps(before, after, took=took)
        void: list[int] = []
        if not kept:
            done = {before.window + 1: self.work} if self.sent is None else {before.window + 1: self.sent}
            if self.sent is not None:
                done[before.window + 2] = self.work
            void = [window for window, work in done.items() if work.batches and window > after.window]
            self.give_up()
        elif took:
            self.sent = None
        elif self.sent is not None and not self.work.batches:
            self.work, self.sent = self.sent, None
        return void
