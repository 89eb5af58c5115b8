"""A state as text: what a person reads of it."""

import io

from rich.console import Console

from fdl_api.wire import Outcome, State
from fdl_cli.demo import screen
from fdl_cli.demo.story import Row

ROWS = [
    Row("fashion-cpu-0-1", "fast", "active", 0.5, 21.4, 120),
    Row("fashion-cpu-1-1", "slow", "dead", None, None, 40),
]
STATE = State(
    generation=1,
    run_uid="u",
    attempt=1,
    outcome=Outcome.TRAINING,
    epoch=2,
    window=9,
    samples=30_000,
    total_samples=120_000,
    samples_per_second=2512.3,
    eta_seconds=35.8,
    loss=0.4567,
)


def test_lines_name_member_node_share_speed_and_batches() -> None:
    first, second, last = screen.lines(STATE, ROWS)
    assert first.split() == [
        "fashion-cpu-0-1",
        "fast",
        "active",
        "share",
        "50",
        "%",
        "21.4",
        "ms/batch",
        "120",
        "batches",
    ]
    assert second.split() == ["fashion-cpu-1-1", "slow", "dead", "share", "-", "-", "ms/batch", "40", "batches"]
    assert last.strip() == "25 % | pass 1 | window 9 | loss 0.457 | 2512 samples/s | ETA 36 s"


def test_unknown_figures_are_left_out() -> None:
    bare = STATE.model_copy(update={"loss": None, "samples_per_second": 0.0, "eta_seconds": None, "total_samples": 0})
    assert screen.figures(bare) == "0 % | pass 1 | window 9"


def test_the_live_view_shows_the_newest_events_and_every_member() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    console.print(screen.live(STATE, ROWS, [f"event {number}" for number in range(9)]))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "fashion-cpu-0-1" in shown
    assert "fashion-cpu-1-1" in shown
    assert "event 8" in shown
    assert "event 2" not in shown
