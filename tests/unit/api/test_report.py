"""The report in the node annotation: what survives the round trip, what counts as a change, when it is too old."""

from datetime import UTC, datetime, timedelta

import pytest

from fdl_api import labels, names
from fdl_api.report import (
    MAX_TERMINATION_BYTES,
    Check,
    DeepDevice,
    DeepFacts,
    DeepWanted,
    Device,
    Host,
    Report,
    deep_pod_name,
    of_node,
    parse,
)

NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


def report(**changes: object) -> Report:
    values: dict[str, object] = {
        "node": "n1",
        "time": NOW,
        "ready": True,
        "devices": (Device(vendor="nvidia", index=0, arch="sm_90", memory_bytes=85899345920),),
        "checks": (Check(name="clock", severity="warn", message="m", remedy="r"),),
        "host": Host(cpus=4, clock_offset_seconds=0.4),
    }
    return Report.model_validate(values | changes)


def test_a_report_comes_back_from_the_annotation() -> None:
    made = report()
    assert of_node({labels.REPORT: made.render()}) == made


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"node":"n1"}', "plain words"])
def test_what_is_no_report_is_none(text: str | None) -> None:
    assert parse(text) is None


def test_a_newer_probers_report_can_be_read() -> None:
    text = report().render()
    assert parse(text[:-1] + ',"someNewField":{"a":1}}') == report()


@pytest.mark.parametrize(
    ("judged_by", "mark", "outdated"), [("a", "b", True), ("a", "a", False), ("", "b", False), ("a", "", False)]
)
def test_a_report_is_outdated_where_another_spec_is_known_by_now(judged_by: str, mark: str, outdated: bool) -> None:
    assert report(judged_by=judged_by).is_outdated(mark) is outdated


def test_time_alone_is_no_change() -> None:
    later = report(time=NOW + timedelta(hours=1), host=Host(cpus=4, clock_offset_seconds=-0.3))
    assert later.material() == report().material()


@pytest.mark.parametrize("change", [{"ready": False}, {"devices": ()}, {"host": Host(cpus=8)}, {"checks": ()}])
def test_everything_else_is_a_change(change: dict[str, object]) -> None:
    assert report(**change).material() != report().material()


OK = DeepDevice(index=0, ok=True)
BAD = DeepDevice(index=1, ok=False, error="illegal instruction")


@pytest.mark.parametrize(
    ("devices", "error", "passed"),
    [((OK,), "", True), ((OK, BAD), "", False), ((), "", False), ((OK,), "torch does not load", False)],
)
def test_a_deep_check_passes_only_when_a_kernel_ran_and_all_were_right(
    devices: tuple[DeepDevice, ...], error: str, passed: bool
) -> None:
    assert DeepFacts(variant="cuda", vendor="nvidia", devices=devices, error=error).passed is passed


def test_a_termination_message_fits_and_keeps_the_verdict() -> None:
    devices = tuple(DeepDevice(index=i, name="N" * 60, arch="sm_90", ok=False, error="x" * 300) for i in range(16))
    facts = DeepFacts(variant="cuda", vendor="nvidia", archs=("sm_90",) * 20, devices=devices, error="y" * 5000)
    facts = facts.model_copy(update={"variant_file": "z" * 5000})
    text = facts.render()
    assert len(text.encode()) <= MAX_TERMINATION_BYTES
    back = DeepFacts.model_validate_json(text)
    assert not back.passed and back.variant_file
    assert [device.ok for device in back.devices] == [False] * 16


WANTED = DeepWanted(variant="cpu", vendor="cpu", image="i:1", fingerprint="f")


@pytest.mark.parametrize(
    "other", [{"image": "i:2"}, {"fingerprint": "g"}, {"attempt": 1}, {"variant": "cpu2"}], ids=lambda d: next(iter(d))
)
def test_every_question_has_a_pod_name_of_its_own(other: dict[str, object]) -> None:
    changed = WANTED.model_copy(update=other)
    assert deep_pod_name("n1", changed) != deep_pod_name("n1", WANTED)
    assert deep_pod_name("n2", WANTED) != deep_pod_name("n1", WANTED)


def test_the_longest_variant_still_makes_a_pod_name() -> None:
    longest = WANTED.model_copy(update={"variant": "v" * 30})
    assert len(deep_pod_name("n" * 253, longest)) <= names.MAX_NAME
