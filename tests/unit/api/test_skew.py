"""Clocks that are apart, by the offsets that probers measured against one server."""

import itertools

import pytest

from fdl_api.skew import RESOLUTION_SECONDS, WARN_SECONDS, astray, away

FAR = WARN_SECONDS + RESOLUTION_SECONDS


@pytest.mark.parametrize(
    ("offsets", "named"),
    [
        ([], ""),
        ([50.0], ""),
        ([0.0, FAR], ""),
        ([0.0, FAR + 0.1], "ab"),
        ([0.4, 9.0, -0.4], "b"),
        ([0.0, 0.0, -FAR - 0.1, 0.3], "c"),
        ([0.0, 0.0, 8.0, 8.0], "abcd"),
        ([20.1, 20.0, 19.9, 20.4, 0.0], "e"),
        ([0.0, 1.0, 2.0, 3.0, 3.5], ""),
    ],
    ids=["none", "one", "at the limit", "two", "three", "back", "no majority", "the server's is wrong", "spread"],
)
def test_who_is_named_whatever_the_order(offsets: list[float], named: str) -> None:
    nodes = list(zip("abcde", offsets, strict=False))
    for order in itertools.permutations(nodes):
        assert astray(dict(order)) == tuple(named)


def test_the_resolution_is_no_distance() -> None:
    assert [away(offset) for offset in (0.0, -0.9, 1.0, -1.5)] == [0.0, 0.0, 0.0, 0.5]
