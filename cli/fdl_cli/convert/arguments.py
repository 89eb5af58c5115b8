"""Arguments of the script: those of the run, and floDl's ``training`` and ``options``, which it hands on as flags."""

from collections.abc import Callable, Mapping
from typing import Any


def arguments(tree: Mapping[str, Any], command: Mapping[str, Any], note: Callable[[str], None]) -> list[str]:
    """The words, in a fixed order: published ones, training settings, the command's options."""
    words = list((tree.get("publish") or {}).get("args") or [])
    settings = {**(tree.get("training") or {}), **(command.get("training") or {})}
    options = command.get("options") or {}
    if not isinstance(options, dict):
        note("options are no names with values and were left out")
        options = {}
    for name, value in {**settings, **options}.items():
        words += _flag(str(name).replace("_", "-"), value, note)
    if words:
        note("the script must understand the arguments in spec.trainer.args: " + " ".join(words))
    return words


def _flag(name: str, value: Any, note: Callable[[str], None]) -> list[str]:
    if value is None or value is False:
        return []
    if value is True:
        return [f"--{name}"]
    if isinstance(value, dict):
        note(f"option {name} holds a block of keys and was left out")
        return []
    text = ",".join(str(item) for item in value) if isinstance(value, list) else str(value)
    return [f"--{name}", text]
