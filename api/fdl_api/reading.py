"""Objects that a newer release may have written: what this one knows of them is read, the rest is left out and named.

After a downgrade, and while an upgrade is under way, a program meets fields and words that it does not know: in a spec,
since the API server's schema is the newer one and fills in its defaults, and in a status or a report.
"""

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

MAX_ROUNDS: Final = 32
"""Each takes out at least one part; what lacks something it needs takes out what holds it, a level a round."""
MAX_NAMED: Final = 16

Read = TypeVar("Read", bound=BaseModel)
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Known(Generic[Read]):
    """What this release knows of an object.

    Attributes:
        value: the object.
        left_out: paths of what it does not know, e.g. ``variants.0.newField``; at most :data:`MAX_NAMED`.
    """

    value: Read
    left_out: tuple[str, ...] = ()


def strict(model: type[Read], content: Any) -> Known[Read]:
    """A spec without the fields that this release does not have.

    A value that it does not know is another matter: without it something else would be done than what was asked for.

    Args:
        model: what it should be.
        content: JSON data.

    Raises:
        ValidationError: a value is none that this release knows.
    """
    return _read(model, content, _unknown_fields)


def lenient(model: type[Read], content: Any) -> Known[Read]:
    """A status or a report without the parts that this release does not understand, as far as it is one at all.

    Args:
        model: what it should be.
        content: JSON data.

    Raises:
        ValidationError: something is not understood without which there is no such object.
    """
    return _read(model, content, lambda faults: _unknown_fields(faults) or faults)


def lenient_text(model: type[Read], text: str) -> Read | None:
    """The same from JSON text; ``None`` where it is none."""
    try:
        return model.model_validate_json(text)
    except ValidationError:
        pass
    try:
        return lenient(model, json.loads(text)).value
    except (ValueError, RecursionError):
        return None


def _unknown_fields(faults: list[ErrorDetails]) -> list[ErrorDetails]:
    return [fault for fault in faults if fault["type"] == "extra_forbidden"]


def _read(model: type[Read], content: Any, choose: Callable[[list[ErrorDetails]], list[ErrorDetails]]) -> Known[Read]:
    left_out: list[Path] = []
    for _ in range(MAX_ROUNDS):
        try:
            return Known(model.model_validate(content), tuple(_told(path) for path in left_out[:MAX_NAMED]))
        except ValidationError as error:
            faults = choose(error.errors(include_url=False, include_context=False, include_input=False))
            paths = {_there(content, fault["loc"]) for fault in faults}
            # What holds a fault may have one that only follows from it: a list that is too short without its bad items.
            paths -= {path[:length] for path in paths for length in range(len(path))}
            if not paths or () in paths:
                raise
            content = _without(content, paths) if left_out else _without(deepcopy(content), paths)
            left_out += sorted(paths, key=_told)
    return Known(model.model_validate(content), tuple(_told(path) for path in left_out[:MAX_NAMED]))


def _there(content: Any, location: Path) -> Path:
    """The part of a fault's location that the content has: what is missing is a fault of what should have it."""
    path: list[str | int] = []
    for step in location:
        inside = step in content if isinstance(content, dict) else isinstance(content, list) and isinstance(step, int)
        if not inside:
            break
        content = content[step]
        path.append(step)
    return tuple(path)


def _without(content: Any, paths: set[Path]) -> Any:
    """The content, changed in place. The last items of a list go first, so that the places of the others stay."""
    for *above, last in sorted(paths, key=lambda path: [(isinstance(step, int), step) for step in path], reverse=True):
        holder = content
        for step in above:
            holder = holder[step]
        del holder[last]
    return content


def _told(path: Path) -> str:
    return ".".join(str(step) for step in path)
