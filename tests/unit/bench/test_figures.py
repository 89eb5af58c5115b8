"""The bench's own arithmetic: medians, verdicts, and what counts in the logs."""

import json

from bench.smoke import figures
from bench.smoke.figures import Figure


def test_a_target_is_met_on_its_own_side() -> None:
    assert Figure("a", 1.0, "s", 2.0).met is True
    assert Figure("a", 3.0, "s", 2.0).met is False
    assert Figure("a", 0.9, "", 0.85, better="higher").met is True
    assert Figure("a", 0.8, "", 0.85, better="higher").met is False
    assert Figure("a", None, "", 1.0).met is None


def test_the_median_of_nothing_is_not_measured() -> None:
    assert figures.middle("a", [], "s", 1, "").value is None
    assert figures.middle("a", [0.3, 0.1, 0.2], "s", 1, "").value == 0.2


def test_the_table_names_misses_and_the_json_has_every_sample() -> None:
    found = [Figure("fast", 1.0, "s", 2.0, samples=(1.0, 2.0), note="n"), Figure("slow", 3.0, "s", 2.0)]
    shown = figures.table(found).splitlines()
    assert "met" in shown[1]
    assert "MISSED" in shown[2]
    data = json.loads(figures.to_json(found, {"cores": 2}))
    assert data["figures"][0]["samples"] == [1.0, 2.0]
    assert [figure["met"] for figure in data["figures"]] == [True, False]


def test_commits_are_read_and_half_lines_passed_over() -> None:
    line = json.dumps(
        {"k": "commit", "uid": "a/0", "attempt": 1, "epoch": 2, "window": 3, "contributions": {"a/0": 4, "b/0": 0}},
        separators=(",", ":"),
    )
    assert figures.read_commits([line, line[:-5], '{"k":"batch"}']) == [(2, 3, frozenset({"a/0"}))]


def test_resident_memory_is_read_from_the_kernels_words() -> None:
    assert figures.resident("Name:\tpython\nVmHWM:\t  99999 kB\nVmRSS:\t   40960 kB\n") == 40.0
    assert figures.resident("Name:\tkthreadd\n") == 0.0


def test_only_the_operators_own_calls_count() -> None:
    def event(user: str, verb: str, resource: str, stage: str = "ResponseComplete") -> str:
        reference = {"resource": resource, "name": "x"}
        return json.dumps({"user": {"username": user}, "verb": verb, "stage": stage, "objectRef": reference})

    lines = [
        event("op", "patch", "fdlruns"),
        event("op", "patch", "fdlruns", "RequestReceived"),
        event("op", "watch", "pods"),
        event("op", "update", "leases"),
        event("someone", "get", "pods"),
        "half a li",
    ]
    assert figures.operator_calls(lines, "op") == ["patch fdlruns/x"]
