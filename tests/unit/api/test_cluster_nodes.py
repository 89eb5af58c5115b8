"""What of an FdlCluster's spec a report is made by."""

from typing import Any

import pytest

from fdl_api.cluster_nodes import ProbedSpec, mark

SPEC: dict[str, Any] = {
    "variants": [{"name": "cpu", "vendor": "cpu", "image": "i:1"}],
    "prober": {"deepCheck": True},
    "fabric": {"groups": []},
    "quarantine": {"nodes": []},
}


@pytest.mark.parametrize(
    "change",
    [{"variants": []}, {"prober": {"deepCheck": False}}, {"fabric": {"groups": [{"name": "a"}]}}, {"variants": None}],
)
def test_what_probers_read_has_another_mark_when_it_changes(change: dict[str, Any]) -> None:
    assert mark(SPEC | change) != mark(SPEC)


def test_what_they_do_not_read_does_not_and_order_says_nothing() -> None:
    assert mark(SPEC | {"quarantine": {"nodes": [{"name": "n"}]}, "new": 1}) == mark(SPEC)
    assert mark(dict(reversed(SPEC.items()))) == mark(SPEC)


def test_a_release_that_reads_a_field_more_finds_the_same_as_long_as_it_is_not_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While an upgrade is under way, or the operator's and the prober's marks would differ until its end."""
    before = mark(SPEC)
    fields = dict(ProbedSpec.model_fields)
    monkeypatch.setattr(
        "fdl_api.cluster_nodes.ProbedSpec", type("Grown", (), {"model_fields": fields | {"mesh": fields["fabric"]}})
    )
    assert mark(SPEC) == before != mark(SPEC | {"mesh": {}})
