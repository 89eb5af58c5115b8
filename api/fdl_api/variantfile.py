"""What a trainer image says of its torch: the JSON object that ``python -m fdl_trainer.variant`` writes. Pure."""

import json
from typing import Any, Final

KEYS: Final = {"name": str, "torchVersion": str, "build": str, "archs": list}
"""What the object has to have; further keys (``ncclVersion``, ``pythonVersion``, ``blas``) are for people."""


class VariantFileError(ValueError):
    """A text describes no variant; the message says why."""


def archs(text: str) -> tuple[str, ...]:
    """Architectures that the image's torch has kernels for.

    Raises:
        VariantFileError: the text is not JSON, no object, or lacks a key, or one is of another type.
    """
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise VariantFileError(f"it is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise VariantFileError("it is no object")
    absent = [key for key in KEYS if key not in content]
    if absent:
        raise VariantFileError(f"it lacks {', '.join(absent)}")
    wrong = [key for key, kind in KEYS.items() if not isinstance(content[key], kind)]
    if wrong:
        raise VariantFileError(f"{', '.join(wrong)}: of a wrong type")
    if not all(isinstance(arch, str) for arch in content["archs"]):
        raise VariantFileError("archs has entries that are no text")
    return tuple(content["archs"])
