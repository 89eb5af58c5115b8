"""What ranks tell of commits."""

from dataclasses import replace

from fdl_api import wire
from fdl_api.run import ElcheSpec, Mode
from fdl_trainer import ledger, plan
from fdl_trainer.epochs import EpochBook
from fdl_trainer.plan import PlanSpec
from fdl_trainer.progress import Reporter
from fdl_trainer.solo import SoloLine


class Heard(SoloLine):
    """A line that keeps what is said."""

    def send(self, message: wire.Message, sticky: str = "") -> None:
        self.said = message


def test_a_rank_without_figures_tells_the_same_counts_as_the_lowest() -> None:
    """The first report of a window is the run's: one that left out the skipped samples would set them to zero."""
    spec = PlanSpec.of(Mode.CPU_CADENCE, ElcheSpec())
    books = replace(ledger.create(100, 10, 1, 0), skipped=30)
    control = replace(plan.create(books, spec), window=4, samples=20)
    line = Heard(EpochBook("b"), lambda _: None)
    members = [wire.EpochMember(uid=uid, member=uid, address="127.0.0.1", cohort="cpu") for uid in ("a", "b")]
    epoch = wire.Epoch(generation=1, epoch=2, previous=1, members=members, cause=wire.EpochCause.DEATH, planned=False)
    Reporter(line, replace(control, window=3)).entered(epoch, control)
    assert isinstance(line.said, wire.WindowCommitted)
    assert (line.said.window, line.said.samples, line.said.skipped) == (4, 20, 30)


def test_an_echo_tells_all_counts_that_a_new_coordinator_cannot_know() -> None:
    spec = PlanSpec.of(Mode.CPU_CADENCE, ElcheSpec())
    control = replace(plan.create(replace(ledger.create(100, 10, 2, 0), skipped=30, cursor=120), spec), window=4)
    reporter = Reporter(SoloLine(EpochBook("a"), lambda _: None), replace(control, samples=90))
    assert reporter.echo() is None, "it trains nowhere yet"
    members = [wire.EpochMember(uid="a", member="a", address="127.0.0.1", cohort="cpu")]
    reporter.epoch = wire.Epoch(
        generation=1, epoch=2, previous=1, members=members, cause=wire.EpochCause.DEATH, planned=False
    )
    echo = reporter.echo()
    assert echo is not None
    assert (echo.committed.window, echo.samples, echo.skipped, echo.data_epoch) == (4, 90, 30, 1)
