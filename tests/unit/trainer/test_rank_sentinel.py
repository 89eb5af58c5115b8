"""A member on a node without the data ends before it trains, with the file's name."""

from pathlib import Path

import pytest

from fdl_api.exitcodes import PodExit
from fdl_api.termination import Cause
from fdl_trainer.ending import RunEndedError
from fdl_trainer.rank import require_sentinel
from tests.unit.coordinator.cohort import run_config


def test_the_sentinel_is_required_where_it_is_named(tmp_path: Path) -> None:
    config = run_config(data_dir=str(tmp_path), data_sentinel="set/READY")
    with pytest.raises(RunEndedError) as ended:
        require_sentinel(config)
    assert ended.value.code is PodExit.DATA and ended.value.cause is Cause.INFRASTRUCTURE
    assert str(tmp_path / "set/READY") in ended.value.message
    (tmp_path / "set").mkdir()
    (tmp_path / "set/READY").touch()
    require_sentinel(config)


def test_without_one_nothing_is_checked(tmp_path: Path) -> None:
    require_sentinel(run_config(data_dir=str(tmp_path / "absent")))
