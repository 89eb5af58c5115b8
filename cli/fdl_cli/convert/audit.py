"""Holds what is in the files against the table of floDl's keys: nothing is dropped without a word."""

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from fdl_cli.convert.keys import BLOCKS, KEYS, Key, Kind
from fdl_cli.convert.source import Mapping

Verdict = Literal["carried", "none", "unknown", "wrong"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One key of the files.

    Attributes:
        verdict: carried over; none, it has no counterpart; unknown to floDl; or wrong, its value cannot be used.
        path: the key, with the number of list items and the names of mappings.
        place: ``file:line``.
        text: the field that took its place, or a sentence.
        key: path in the table of keys; empty for one that is not there.
        legacy: whether floDl itself has given the key up.
    """

    verdict: Verdict
    path: str
    place: str
    text: str
    key: str = ""
    legacy: bool = False


@dataclass(slots=True)
class Account:
    """What was found, and what of it can be used.

    Attributes:
        findings: every key, in the order of the files.
        tree: the keys that floDl knows and whose values have the right type, as plain values.
    """

    findings: list[Finding] = field(default_factory=list)
    tree: dict[str, Any] = field(default_factory=dict)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_integer(value: Any) -> bool:
    return _is_whole(value) and 0 <= value < LARGEST


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _all(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(test(item) for item in value)


def _is_env(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str | int | float | bool) for item in value.values())


TYPES: Final[dict[Kind, tuple[str, Callable[[Any], bool]]]] = {
    "text": ("a text", _is_text),
    "integer": ("a whole number from 0", _is_integer),
    "number": ("a number", _is_number),
    "flag": ("true or false", lambda value: isinstance(value, bool)),
    "texts": ("a list of texts", _all(lambda item: isinstance(item, str))),
    "integers": ("a list of whole numbers from 0", _all(_is_integer)),
    "numbers": ("a list of numbers", _all(_is_number)),
    "devices": ("'all' or a list of device numbers", lambda value: value == "all" or _all(_is_integer)(value)),
    "anchor": ("'auto' or a whole number", lambda value: value == "auto" or _is_integer(value)),
    "progressive": ("'auto', true or false", lambda value: value == "auto" or isinstance(value, bool)),
    "ssh": ("a block of keys, or once a host's name", lambda value: isinstance(value, dict) or _is_text(value)),
    "env": ("a block of names and values", _is_env),
    "map": ("a block of keys", lambda value: isinstance(value, dict)),
    "maps": ("a list of blocks", _all(lambda item: isinstance(item, dict))),
    "any": ("anything", lambda value: True),
}
"""Kind of a value -> how it is called, and its test."""
LARGEST: Final = 1 << 63
"""Above all numbers that anybody means: larger ones cannot be counted with everywhere."""
TWICE: Final = "is given twice; the last one counts here, floDl refuses it"
STAYS: Final = "it does not fan out ('cluster: true'), so it stays a program of yours"


def audit(top: Mapping, command: str = "") -> Account:
    """Account for every key of a file, or of several laid over each other.

    Args:
        top: the file.
        command: a command to convert, whether or not it fans out.
    """
    account = Account()
    account.tree = _block(top, "", "", account.findings)
    if isinstance(commands := top.get("commands"), Mapping):
        account.tree["commands"] = _commands(commands, command, account.findings)
    return account


def _block(block: Mapping, pattern: str, path: str, findings: list[Finding]) -> dict[str, Any]:
    """The usable part of a block of keys. ``pattern`` is its path in the table, ``path`` the one to tell."""
    usable: dict[str, Any] = {}
    for key, place in block.twice:
        findings.append(Finding("wrong", path + key, place, TWICE))
    for key, value in block.items():
        place, name = block.places[key], path + key
        known = KEYS.get(pattern + key)
        if known is None:
            findings.append(Finding("unknown", name, place, _unknown(pattern, key)))
            continue
        what, test = TYPES[known.kind]
        if value is None:
            findings.append(Finding(_verdict(known), name, place, "is empty, which means floDl's default", known.path))
        elif not test(value):
            findings.append(Finding("wrong", name, place, f"is {_shown(value)}, not {what}; it was left out"))
        else:
            if known.path not in BLOCKS or not isinstance(value, dict):
                text = known.became or known.instead
                findings.append(Finding(_verdict(known), name, place, text, known.path, known.legacy))
            usable[key] = _inside(value, known, name, findings)
    return usable


def _inside(value: Any, known: Key, path: str, findings: list[Finding]) -> Any:
    if known.path == "commands":
        return {}
    if isinstance(value, Mapping) and known.path in BLOCKS:
        return _block(value, f"{known.path}.", f"{path}.", findings)
    if known.kind == "maps":
        return [_block(item, f"{known.path}[].", f"{path}[{at}].", findings) for at, item in enumerate(value)]
    return plain(value)


def _commands(commands: Mapping, wanted: str, findings: list[Finding]) -> dict[str, Any]:
    """The commands; of one that does not become a run only that is told, and what was not understood."""
    usable: dict[str, Any] = {}
    for key, place in commands.twice:
        findings.append(Finding("wrong", f"commands.{key}", place, TWICE))
    for name, command in commands.items():
        place, path = commands.places[name], f"commands.{name}"
        if not isinstance(command, Mapping | None):
            said = f"is {_shown(command)}, not a block of keys; it was left out"
            findings.append(Finding("wrong", path, place, said))
            continue
        inside: list[Finding] = []
        usable[name] = _block(command, "commands.*.", f"{path}.", inside) if command is not None else {}
        if not usable[name].get("cluster") and name != wanted:
            findings.append(Finding("none", path, place, STAYS, "commands.*"))
            inside = [each for each in inside if each.verdict in ("unknown", "wrong")]
        findings += inside
    return usable


def plain(value: Any) -> Any:
    """A value without the places of its keys."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def _verdict(key: Key) -> Verdict:
    return "carried" if key.became else "none"


def _unknown(pattern: str, key: str) -> str:
    siblings = sorted(_siblings(pattern))
    near = difflib.get_close_matches(key, siblings, n=1, cutoff=0.7)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"is no key of floDl's, and was left out{hint}"


def _siblings(pattern: str) -> Iterator[str]:
    for path in KEYS:
        tail = path.removeprefix(pattern)
        if path.startswith(pattern) and "." not in tail and "[]" not in tail:
            yield tail


def _shown(value: Any) -> str:
    """A value as it may stand in a sentence: short, and blocks only by their kind."""
    if isinstance(value, dict):
        return "a block of keys"
    if isinstance(value, list):
        return "a list" if all(not isinstance(item, dict) for item in value) else "a list of blocks"
    if _is_whole(value) and abs(value) >= LARGEST:
        return "a number beyond all measure"  # too long to be written, even
    text = repr(value) if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."
