"""Whether a node's report is fresh, and how many devices its labels tell of."""

import pytest

from fdl_api.nodes import age_check, age_fault, devices

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("age", "fault"),
    [(0, None), (899, None), (900, None), (901, "old"), (-900, None), (-901, "ahead"), (None, "unreadable")],
)
def test_a_report_gets_too_old_and_one_of_the_future_is_not_fresh_for_ever(
    age: float | None, fault: str | None
) -> None:
    at = None if age is None else NOW - age
    assert age_fault(at, NOW, 900) == fault
    check = age_check(at, NOW, 900)
    assert (check.reason if check is not None else None) == fault


def test_the_finding_says_the_same_while_time_goes_by() -> None:
    assert age_check(NOW, NOW + 1000, 900) == age_check(NOW, NOW + 2000, 900)
    check = age_check(NOW, NOW + 1000, 900)
    assert check is not None and check.message == "the newest report is older than 900 s"
    assert (check.name, check.persistence, check.blocking) == ("report-age", "transient", True) and check.remedy


@pytest.mark.parametrize(
    ("text", "found"),
    [
        *[("8", 8), ("0", 0), ("007", 7), ("999999", 999999)],
        *[(text, None) for text in ("", "1000000", "-1", "2x", "1e3", "²", "٣" * 7)],
    ],
)
def test_devices_are_what_the_label_says_where_that_is_a_number(text: str, found: int | None) -> None:
    assert devices({"fdl.dev/count.amd": text, "fdl.dev/count.nvidia": "3"}, "amd") == found


def test_without_a_label_the_number_is_not_known() -> None:
    assert devices({"fdl.dev/count.nvidia": "3"}, "amd") is None
