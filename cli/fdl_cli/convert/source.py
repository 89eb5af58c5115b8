"""Reads floDl's YAML files and keeps the line of every key, so that each can be accounted for."""

from pathlib import Path
from typing import Any, Final

import yaml

MAX_BYTES: Final = 1 << 20
MAX_ENTRIES: Final = 20_000
"""Keys and items in one file, aliases counted each time they are used: a small file can otherwise be endless."""


class SourceError(Exception):
    """A file cannot be read; the text says why."""


class Mapping(dict[str, Any]):
    """A YAML mapping that knows where its keys stand.

    Attributes:
        places: key -> ``file:line``.
        twice: places of keys that were given again; floDl refuses that, and the last one counts here.
    """

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, str] = {}
        self.twice: list[tuple[str, str]] = []


class _Loader(yaml.SafeLoader):
    file: str = ""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> Mapping:
    made = Mapping()
    _own_keys(loader, node, made)
    loader.flatten_mapping(node)
    for key_node, value_node in node.value:
        key = str(loader.construct_object(key_node, deep=True))
        made[key] = loader.construct_object(value_node, deep=True)
        made.places[key] = f"{loader.file}:{key_node.start_mark.line + 1}"
    return made


def _own_keys(loader: _Loader, node: yaml.MappingNode, made: Mapping) -> None:
    """Keys given twice, before merge keys are resolved: overriding a merged key is what merging is for."""
    seen: set[str] = set()
    for key_node, _ in node.value:
        key = str(key_node.value)
        if key in seen:
            made.twice.append((key, f"{loader.file}:{key_node.start_mark.line + 1}"))
        seen.add(key)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def parse(text: str, file: str) -> Mapping:
    """The mapping in a YAML (or JSON) text.

    Args:
        text: content of the file.
        file: its name, for places.

    Raises:
        SourceError: it is no YAML, no mapping, or has more than :data:`MAX_ENTRIES` entries.
    """
    try:
        loader = _Loader(text)
        loader.file = file
        found = loader.get_single_data()
    # Tags on values that they do not suit bring any of these about in PyYAML.
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise SourceError(f"{file} is no YAML that can be read: {said}") from error
    if found is None:
        found = Mapping()
    if not isinstance(found, Mapping):
        raise SourceError(f"{file} holds no keys at its top level; is it floDl's configuration?")
    _count(found, file)
    return found


def read(path: Path) -> Mapping:
    """The mapping in a file.

    Raises:
        SourceError: it cannot be read, or is larger than :data:`MAX_BYTES` bytes.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(content) > MAX_BYTES:
        raise SourceError(f"{path} has more than {MAX_BYTES} bytes; floDl's configuration is far smaller")
    try:
        return parse(content.decode(), path.name)
    except UnicodeDecodeError as error:
        raise SourceError(f"{path} is no UTF-8 text: byte {error.start} is none of a character") from error


def overlay(base: Mapping, above: Mapping) -> Mapping:
    """``above`` laid over ``base`` as floDl does it: mappings are merged, all else is replaced, ``null`` removes."""
    made = Mapping()
    for part in (base, above):
        made.twice += part.twice
    for key in (*base, *(key for key in above if key not in base)):
        if key in above and above[key] is None and key in base:
            continue
        value = above.get(key, base.get(key))
        if isinstance(base.get(key), Mapping) and isinstance(above.get(key), Mapping):
            value = overlay(base[key], above[key])
        made[key] = value
        made.places[key] = above.places.get(key) or base.places[key]
    return made


def _count(top: Mapping, file: str) -> None:
    left = MAX_ENTRIES
    waiting: list[Any] = [top]
    while waiting:
        value = waiting.pop()
        items = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
        left -= len(items)
        if left < 0:
            raise SourceError(
                f"{file} has more than {MAX_ENTRIES} keys and items; floDl's configuration is far smaller"
            )
        waiting.extend(items)
