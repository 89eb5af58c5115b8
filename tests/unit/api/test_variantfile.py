"""Descriptions of a variant's torch, good and bad."""

import json
from typing import Any

import pytest

from fdl_api.variantfile import VariantFileError, archs

GOOD: dict[str, Any] = {"name": "x", "torchVersion": "2", "build": "cu128", "archs": ["sm_80", "sm_90"]}


def test_the_architectures_of_a_description() -> None:
    assert archs(json.dumps(GOOD)) == ("sm_80", "sm_90")
    assert archs(json.dumps(GOOD | {"archs": [], "ncclVersion": None, "of a newer release": 1})) == ()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "no JSON"),
        (json.dumps(GOOD)[:20], "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "no object"),
        (json.dumps({key: GOOD[key] for key in ("name", "torchVersion")}), "lacks build, archs"),
        (json.dumps(GOOD | {"torchVersion": 2}), "torchVersion: of a wrong type"),
        (json.dumps(GOOD | {"archs": "sm_80"}), "archs: of a wrong type"),
        (json.dumps(GOOD | {"archs": [80]}), "no text"),
    ],
    ids=["empty", "half-written", "nested", "list", "missing", "number", "text for list", "numbers in list"],
)
def test_what_is_no_description_is_told_why(text: str, error: str) -> None:
    with pytest.raises(VariantFileError, match=error):
        archs(text)
