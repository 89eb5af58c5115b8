"""What a member's agent writes to the pod's termination message, and what the operator reads there."""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

MAX_BYTES = 4000
"""The kubelet keeps 4,096 bytes of a termination message."""


class Cause(StrEnum):
    """Why a member ended; each is billed to the budget of its name.

    ``complete`` is billed to none, ``fenced`` to ``infrastructure`` where it happens to a seat again and again.
    """

    COMPLETE = "complete"
    APP = "app"
    INFRASTRUCTURE = "infrastructure"
    PREEMPTION = "preemption"
    FENCED = "fenced"


class Saved(StrEnum):
    """Whether the work up to the end is in a checkpoint."""

    SAVED = "saved"
    COMMITTED = "committed"
    """Counted, and held by the members that go on; no checkpoint is known to have it yet."""
    INCOMPLETE = "incomplete"
    NOTHING = "nothing"


class Termination(BaseModel):
    """A member's last words: JSON in the termination message."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)

    cause: Cause
    reason: str = Field(max_length=64, description="Stable reason, one of fdl_api.reasons.")
    message: str = Field(max_length=1024, description="One sentence for a person: what, where, what to do.")
    permanent: bool = Field(default=False, description="True when a retry cannot help until a person acts.")
    saved: Saved = Saved.NOTHING
    traceback: str = Field(default="", max_length=2400, description="Tail of the last traceback, if any.")
    rank: int | None = Field(default=None, description="Local rank that ended first.")
    exit_code: int | None = Field(default=None, description="Exit code or negative signal of that rank.")
    last_window: int | None = Field(default=None, description="Last window that the rank had committed.")

    def render(self) -> str:
        """JSON of at most :data:`MAX_BYTES` bytes; the traceback is cut at its start where it must be."""
        text = self.model_dump_json(by_alias=True, exclude_none=True)
        over = len(text.encode()) - MAX_BYTES
        if over <= 0:
            return text
        kept = self.traceback.encode()[over * 2 :].decode(errors="ignore")
        return self.model_copy(update={"traceback": kept}).model_dump_json(by_alias=True, exclude_none=True)


def script_missing(path: str, why: str) -> str:
    """Sentence of a member whose script cannot be read.

    Args:
        path: of the script.
        why: the system's word.
    """
    return f"The script {path} cannot be read ({why}){_SCRIPT_REMEDY}"


def fault_alone(message: str) -> str:
    """A member's sentence without the remedy of :func:`script_missing`, for who knows better what to do."""
    return message.removesuffix(_SCRIPT_REMEDY)


_SCRIPT_REMEDY = ": put it where spec.trainer.source says (ConfigMap, volume or image), or correct that in a new run."


def parse(text: str | None) -> Termination | None:
    """Read a termination message; ``None`` when the pod died before it could write one."""
    if not text or not text.lstrip().startswith("{"):
        return None
    try:
        return Termination.model_validate_json(text)
    except ValueError:
        return None
