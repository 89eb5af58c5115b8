"""Keys of older floDl configurations, refused with a sentence that names the successor.

They are declared in the schema with the type they had, since the API server drops an undeclared key
before any rule could see it.
"""

from dataclasses import dataclass
from typing import Any, Final

from fdl_api.model import VALIDATIONS, Rule

_TEXT: Final[dict[str, Any]] = {"type": "string", "maxLength": 1024}
_NUMBER: Final[dict[str, Any]] = {"type": "integer"}
_TEXTS: Final[dict[str, Any]] = {"type": "array", "maxItems": 64, "items": _TEXT}
_NUMBERS: Final[dict[str, Any]] = {"type": "array", "maxItems": 1024, "items": _NUMBER}
_OBJECTS: Final[dict[str, Any]] = {
    "type": "array",
    "maxItems": 1024,
    "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
}


@dataclass(frozen=True, slots=True)
class LegacyKey:
    """One old key: its type there, and what to do instead."""

    key: str
    schema: dict[str, Any]
    instead: str

    def message(self, parent: str) -> str:
        """The sentence for this key below ``parent``, e.g. ``spec``."""
        return f"{parent}.{self.key}: is a key of floDl, not of FdlRun; {self.instead}"

    def declare(self, parent: str) -> dict[str, Any]:
        """Schema of the key: declared, typed, and always refused."""
        return {
            "description": f"Refused: {self.instead}.",
            **self.schema,
            VALIDATIONS: [Rule("false", self.message(parent), forbidden=True).render()],
        }


_NO_SSH: Final = "remove it: members are pods, and spec.cohorts[].nodeSelector chooses their nodes"
_OF_HOSTS: Final = (
    LegacyKey("ranks", _NUMBERS, "remove it and set spec.cohorts[].replicas and devicesPerReplica"),
    LegacyKey("libtorch_path", _TEXT, "remove it and set spec.cohorts[].variant"),
    LegacyKey("ssh_target", _TEXT, _NO_SSH),
    LegacyKey("ssh_port", _NUMBER, _NO_SSH),
    LegacyKey("ssh_user", _TEXT, _NO_SSH),
    LegacyKey("ssh_identity_file", _TEXT, _NO_SSH),
    LegacyKey("ssh_options", _TEXTS, _NO_SSH),
)

SPEC: Final = (
    LegacyKey("master_addr", _TEXT, "remove it: members find the coordinator by its Service"),
    LegacyKey("master_port", _NUMBER, "remove it: members find the coordinator by its Service"),
    LegacyKey("hosts", _OBJECTS, "use spec.cohorts, which names kinds of nodes instead of hosts"),
    *_OF_HOSTS,
)
"""Old keys below ``spec``."""

COHORT: Final = _OF_HOSTS
"""Old keys below ``spec.cohorts[]``, which took the place of a host."""


def refuse(data: Any, parent: str, keys: tuple[LegacyKey, ...]) -> Any:
    """Give ``data`` back unless it is a mapping with an old key.

    Raises:
        ValueError: with the same sentence that the API server says.
    """
    if isinstance(data, dict):
        found = [key.message(parent) for key in keys if key.key in data]
        if found:
            raise ValueError("; ".join(found))
    return data
