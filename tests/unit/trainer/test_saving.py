"""When a rank's checkpoints are due."""

from pathlib import Path
from typing import Any

import pytest

from fdl_trainer.manifest import Order
from fdl_trainer.saving import Saver


@pytest.mark.parametrize(
    ("resumed", "interval", "due"),
    [
        (None, 3600.0, True),  # the run has none yet: if all die now, their successors must begin anew
        ((1, 4097, 12), 3600.0, False),
        ((1, 4097, 12), 0.0, True),
    ],
)
def test_a_run_without_a_checkpoint_takes_its_first_at_once(
    resumed: Order | None, interval: float, due: bool, tmp_path: Path
) -> None:
    said: list[Any] = []
    saver = Saver(
        tmp_path,
        keep=1,
        interval_seconds=interval,
        attempt=1,
        name="pod/0",
        model_digest="x",
        specs=[],
        resumed=resumed,
        send=lambda message, _: said.append(message),
        forget=said.append,
    )
    try:
        assert saver.due() is due and said == []
    finally:
        saver.close()
