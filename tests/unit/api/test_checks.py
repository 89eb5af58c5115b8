"""The catalogue of checks: names are stable and told apart, and each finding has a way out."""

import re
from pathlib import Path

import pytest

from fdl_api.checks import CHECKS, GROUPS, CheckInfo, Finding
from fdl_api.checks.conditions import CONDITIONS, finding, joined, seen_in
from fdl_api.checks.devices import GPU_DRIVER
from fdl_api.checks.page import page
from fdl_api.reasons import ClusterCondition, ClusterReason

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
EVERY = [(check, entry) for check in CHECKS for entry in check.findings]


def test_names_are_stable_words_told_apart() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    assert all(NAME.fullmatch(name) and len(name) <= 64 for name in names)
    for check in CHECKS:
        reasons = [entry.reason for entry in check.findings]
        assert len(set(reasons)) == len(reasons) and all(NAME.fullmatch(reason) for reason in reasons)
        assert check.group in GROUPS


@pytest.mark.parametrize(("check", "entry"), EVERY, ids=[f"{check.name}/{entry.reason}" for check, entry in EVERY])
def test_every_finding_has_a_remedy_and_a_gravity(check: CheckInfo, entry: Finding) -> None:
    assert entry.remedy.endswith(".") and entry.remedy[0].isupper()
    assert entry.severity in ("warn", "unknown", "fail")
    assert entry.persistence in ("transient", "permanent")
    assert not entry.blocking or entry.severity != "warn"
    assert entry.when and not entry.when.endswith(".")


def test_a_finding_takes_everything_but_its_message_from_the_catalogue() -> None:
    made = GPU_DRIVER.found("nouveau", "the kernel says so", "nvidia", {"plugged": 2})
    assert (made.name, made.reason, made.severity, made.persistence) == ("gpu-driver", "nouveau", "fail", "permanent")
    assert made.remedy == GPU_DRIVER.finding("nouveau").remedy
    assert made.evidence == {"plugged": "2"}
    assert made.to_dict()["class"] == "permanent"
    with pytest.raises(KeyError, match="gpu-driver has no finding"):
        GPU_DRIVER.found("something-else", "")


def test_what_is_found_can_always_be_written() -> None:
    """Names of files and values of variables may be any bytes, and of any length."""
    strange = b"/data/\xff \xc3\xbc\x07\n".decode(errors="surrogateescape")
    made = GPU_DRIVER.found("nouveau", strange * 200, strange, {strange: strange})
    assert made.subject == "/data/\ufffd \u00fc" and len(made.message) == 600
    assert made.model_dump_json() and GPU_DRIVER.passed(strange, strange).model_dump_json()


@pytest.mark.parametrize("kind", CONDITIONS)
def test_every_condition_has_a_remedy_for_each_of_its_reasons(kind: ClusterCondition) -> None:
    entries = CONDITIONS[kind]
    assert len({entry.reason for entry in entries}) == len(entries) > 0
    for entry in entries:
        assert entry.remedy.endswith(".") and entry.remedy[0].isupper() and not entry.when.endswith(".")
        assert finding(str(kind), str(entry.reason)) is entry
        message = joined("gpu-1 differs", entry)
        assert message == f"gpu-1 differs. {entry.remedy}" and seen_in(message, entry) == "gpu-1 differs"


def test_every_reason_is_well_or_has_a_remedy() -> None:
    well = {
        ClusterReason.AS_EXPECTED,
        ClusterReason.NO_DEVICES,
        ClusterReason.NOT_NEEDED,
        ClusterReason.TAINT_REFUSED,  # of an Event only
    }
    told = {entry.reason for entries in CONDITIONS.values() for entry in entries}
    assert told | well == set(ClusterReason) and not told & well
    assert set(CONDITIONS) == set(ClusterCondition)


def test_a_condition_that_is_not_known_has_no_remedy_and_keeps_its_message() -> None:
    assert finding("FabricKnown", "AsExpected") is None and finding("Newer", "Than") is None
    assert joined("all is well", None) == seen_in("all is well", None) == "all is well"
    older = finding("NCCLConsistent", "VersionSkew")
    assert seen_in("a message of an older operator", older) == "a message of an older operator"


def test_the_page_has_every_finding() -> None:
    text = page()
    for kind, entries in CONDITIONS.items():
        assert all(f"| `{kind}` | `{entry.reason}` | {entry.severity}" in text for entry in entries)
    assert all(f"| `{check.name}` | `{entry.reason}` | {entry.severity}" in text for check, entry in EVERY)
    assert (Path(__file__).parents[3] / "docs/reference/checks.md").read_text() == text
