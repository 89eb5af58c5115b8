"""What the messages promise to programs of other releases that speak the same version."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from fdl_api import wire
from fdl_api.reasons import Refusal
from fdl_api.version import WIRE_VERSION
from fdl_api.wire import Message, member_of, rank_uid

REQUIRED = Path(__file__).with_name("wire_required.json")


@pytest.mark.parametrize("member", ["6f1c", "box/7", ""])
def test_the_member_of_a_rank_is_found_in_its_uid(member: str) -> None:
    assert member_of(rank_uid(member, 12)) == member


def grown(value: Any) -> Any:
    """JSON data with a field that no release has in each of its objects."""
    if isinstance(value, list):
        return [grown(each) for each in value]
    return {**{key: grown(each) for key, each in value.items()}, "new": [1]} if isinstance(value, dict) else value


MEMBER = wire.EpochMember(
    uid="u/0", member="m", address="10.0.0.1", cohort="a", reach=wire.Reach(address="10.0.0.1", port=1)
)
MESSAGES = [
    (wire.FROM_OPERATOR, wire.Hint(wanted_members=3, expected=["u"], suspend=True)),
    (wire.FROM_RANK, wire.WindowCommitted(epoch=1, window=2, samples=3, data_epoch=0)),
    (wire.FROM_AGENT, wire.Leave(reason="SIGTERM")),
    (
        wire.TO_MEMBER,
        wire.Epoch(generation=1, epoch=1, previous=0, members=[MEMBER], cause=wire.EpochCause.START, planned=False),
    ),
    (wire.TO_OPERATOR, wire.Refuse(reason=Refusal.FENCED, message="m", permanent=True)),
]


@pytest.mark.parametrize(("adapter", "message"), MESSAGES, ids=lambda each: getattr(each, "type", ""))
def test_fields_of_a_newer_release_are_left_out(adapter: Any, message: Message) -> None:
    text = json.dumps(grown(json.loads(wire.encode(message))))
    assert '"new"' in text and adapter.validate_json(text) == message


def parts(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Each message, and each part of one, by its name."""
    found: dict[str, type[BaseModel]] = {}
    for each in model.__subclasses__():
        found |= {each.__name__: each, **parts(each)}
    return found


def test_messages_need_the_fields_that_their_version_has_always_needed() -> None:
    """Whoever changes that file changes WIRE_VERSION: a program of an earlier release knows nothing of it.

    A new field with a default, or a new part in such a field, changes neither.
    """
    kept = json.loads(REQUIRED.read_text(encoding="utf-8"))
    required = {
        name: sorted(field for field, told in part.model_fields.items() if told.is_required())
        for name, part in parts(Message).items()
        if "type" in part.model_fields or name in kept["required"]
    }
    assert {"wireVersion": WIRE_VERSION, "required": required} == kept
