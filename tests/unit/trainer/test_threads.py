from pathlib import Path

import pytest

from fdl_api.runconfig import MemberEnv
from fdl_trainer import threads
from fdl_trainer.threads import parse_v1, parse_v2, read_quota, thread_count, threads_here


@pytest.mark.parametrize(
    ("limit", "quota", "processors", "ranks", "expected"),
    [
        (None, None, 64, 1, 1),
        (4000, None, 64, 1, 4),
        (None, 4000, 64, 1, 4),
        (1500, None, 64, 1, 1),
        (250, 250, 64, 1, 1),
        (8000, 2000, 64, 1, 2),
        (8000, None, 4, 1, 4),
        (8000, None, 64, 4, 2),
        (2000, None, 64, 8, 1),
        (0, 3000, 64, 1, 3),
    ],
)
def test_whole_processors_that_are_surely_there(
    limit: int | None, quota: int | None, processors: int, ranks: int, expected: int
) -> None:
    assert thread_count(limit, quota, processors, ranks) == expected


@pytest.mark.parametrize(
    ("text", "millicores"),
    [("200000 100000\n", 2000), ("max 100000\n", None), ("50000 100000", 500), ("", None), ("1 0", None)],
)
def test_cgroup_v2(text: str, millicores: int | None) -> None:
    assert parse_v2(text) == millicores


@pytest.mark.parametrize(
    ("quota", "period", "millicores"), [("150000\n", "100000\n", 1500), ("-1\n", "100000\n", None), ("1", "0", None)]
)
def test_cgroup_v1(quota: str, period: str, millicores: int | None) -> None:
    assert parse_v1(quota, period) == millicores


def test_both_layouts_are_found(tmp_path: Path) -> None:
    assert read_quota(tmp_path) is None
    folder = tmp_path / "cpu,cpuacct"
    folder.mkdir()
    (folder / "cpu.cfs_quota_us").write_text("300000\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    assert read_quota(tmp_path) == 3000
    (tmp_path / "cpu.max").write_text("20000 10000\n")
    assert read_quota(tmp_path) == 2000


def test_what_the_user_sets_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "read_quota", lambda: None)
    assert threads_here({"OMP_NUM_THREADS": "7", MemberEnv.CPU_LIMIT: "1000"}) == 7
    assert threads_here({MemberEnv.CPU_LIMIT: "1000"}) == 1
    assert threads_here({}) == 1
    assert threads_here({MemberEnv.CPU_LIMIT: "no number", "OMP_NUM_THREADS": "0"}) == 1
