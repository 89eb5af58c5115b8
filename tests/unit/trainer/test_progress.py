"""What ranks tell of commits."""

import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fdl_api import wire
from fdl_api.run import ElcheSpec, Mode
from fdl_trainer import ledger, plan
from fdl_trainer.epochs import EpochBook
from fdl_trainer.plan import PlanSpec
from fdl_trainer.progress import Reporter
from fdl_trainer.session import Session
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


def test_a_single_rank_says_in_its_log_that_it_goes_on_and_how_it_ended(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="fdl_trainer.progress")
    session = Session()
    session.setup(
        model=lambda: torch.nn.Linear(2, 1),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        dataset=(torch.randn(600, 2), torch.randn(600, 1)),
        batch_size=4,
        epochs=2,
    )
    for x, y in session:
        session.report((session.model(x) - y).square().mean())
    session.close()
    first, *_, last = [record.getMessage() for record in caplog.records if record.name == "fdl_trainer.progress"]
    assert first.startswith("window 1: ") and ", 1 rank, loss " in first
    assert "1200 samples trained (100 % of 1200), 1 rank" in last


SOLO = """
import torch, fdl_trainer

def main(session):
    session.setup(model=lambda: torch.nn.Linear(2, 1), optimizer=lambda p: torch.optim.SGD(p, lr=0.01),
                  dataset=(torch.randn(80, 2), torch.randn(80, 1)), batch_size=4, epochs=1)
    for x, y in session:
        session.report((session.model(x) - y).square().mean())
    session.evaluate(lambda model: {"figure": 1.0})

fdl_trainer.run(main)
"""


@pytest.mark.parametrize(
    ("own", "shown"), [("", True), ("import logging; logging.basicConfig(level='ERROR')\n", False)]
)
def test_a_script_that_is_run_by_hand_shows_it_unless_it_has_logging_of_its_own(
    own: str, shown: bool, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(own + SOLO)
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=240, check=True)
    assert ended.stdout == "figure: 1.0000\n"
    assert ("80 samples trained (100 % of 80), 1 rank" in ended.stderr) == shown, ended.stderr
