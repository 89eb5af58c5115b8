"""From a pydantic model to a structural OpenAPI v3 schema, as a CustomResourceDefinition needs it.

Kubernetes takes less than JSON Schema: no references, no null types, no tuples. Everything else (bounds,
defaults, patterns, ``x-kubernetes-*``) goes through unchanged, so that a field is described in one place.
"""

from copy import deepcopy
from typing import Any, Final

from pydantic import BaseModel

from fdl_api.legacy import LegacyKey
from fdl_api.model import MUTABLE_KEY, VALIDATIONS, Rule

Schema = dict[str, Any]

_DROPPED: Final = ("title", "propertyNames", "const", "$defs")
_REMEDY: Final = (
    "cannot be changed after creation, only replicas and most of spec.runPolicy can; "
    "undo the edit, or apply it as a new FdlRun"
)


def structural(model: type[BaseModel]) -> Schema:
    """Structural schema of ``model``: references inlined, optional fields without null, in declared order.

    Marks of :data:`fdl_api.model.MUTABLE` stay in; :func:`freeze` uses and removes them.
    """
    raw = model.model_json_schema(by_alias=True, mode="validation")
    return _convert(raw, raw.get("$defs", {}))


def _convert(node: Schema, definitions: dict[str, Schema]) -> Schema:
    node = _inline(node, definitions)
    result: Schema = {}
    for key, value in node.items():
        if key in _DROPPED or (key == "default" and value is None):
            continue
        if key == "properties":
            required = node.get("required", ())
            result[key] = {name: _property(child, definitions, name in required) for name, child in value.items()}
        elif key == "items":
            result[key] = _convert(value, definitions)
        elif key == "additionalProperties":
            if isinstance(value, dict):
                result[key] = _convert(value, definitions)
        elif key == "anyOf":
            # Only the int-or-string form is structural; bounds of either type stand beside it.
            result[key] = [{"type": option["type"]} for option in value]
            result.update({bound: limit for option in value for bound, limit in option.items() if bound != "type"})
        elif key == "exclusiveMinimum":
            result.update(minimum=value, exclusiveMinimum=True)
        elif key == "default" and value in ([], {}):
            continue
        else:
            result[key] = deepcopy(value)
    return result


def _property(node: Schema, definitions: dict[str, Schema], required: bool) -> Schema:
    """A property. A group of fields that may be absent gets the defaults of its fields as its own default."""
    converted = _convert(node, definitions)
    if "$ref" in node and "properties" in converted and not required:
        children = converted["properties"].items()
        converted["default"] = {name: deepcopy(child["default"]) for name, child in children if "default" in child}
    return converted


def _inline(node: Schema, definitions: dict[str, Schema]) -> Schema:
    """Resolve a reference and an ``X | None``; what is said beside them wins, rules add up."""
    options = [option for option in node.get("anyOf", ()) if option.get("type") != "null"]
    beside = {key: value for key, value in node.items() if key not in ("anyOf", "$ref")}
    if len(options) == 1:
        base = _inline(options[0], definitions)
    elif "$ref" in node:
        base = _inline(definitions[node["$ref"].rsplit("/", 1)[1]], definitions)
    else:
        return node if not options else {**beside, "anyOf": options}
    merged = {**base, **beside}
    if VALIDATIONS in base and VALIDATIONS in beside:
        merged[VALIDATIONS] = [*base[VALIDATIONS], *beside[VALIDATIONS]]
    return merged


def without_defaults(schema: Schema) -> Schema:
    """``schema`` without defaults at any depth: a status holds what its writer wrote, nothing else."""
    result = {key: value for key, value in schema.items() if key != "default"}
    if "properties" in result:
        result["properties"] = {name: without_defaults(child) for name, child in result["properties"].items()}
    for key in ("items", "additionalProperties"):
        if key in result:
            result[key] = without_defaults(result[key])
    return result


def freeze(schema: Schema, path: str) -> None:
    """Add a transition rule for each field below ``path`` that is not marked as mutable; remove the marks."""
    entries = schema.setdefault(VALIDATIONS, [])
    for name, child in schema["properties"].items():
        if child.pop(MUTABLE_KEY, False):
            continue
        where = f"{path}.{name}"
        if child.get("x-kubernetes-list-type") == "map" and _has_mutable(child["items"]):
            keys = child["x-kubernetes-list-map-keys"]
            _freeze_items(child["items"], where, keys)
            listed = " && ".join(f"self.{name}.map(i, i.{key}) == oldSelf.{name}.map(i, i.{key})" for key in keys)
            entries.append(_frozen(listed, where, name))
        elif child.get("type") == "object" and "properties" in child and _always_there(schema, name):
            freeze(child, where)
        elif _always_there(schema, name):
            entries.append(_frozen(f"self.{name} == oldSelf.{name}", where, name))
        else:
            same = f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})"
            entries.append(_frozen(same, where, name))
    if not entries:
        del schema[VALIDATIONS]


def _freeze_items(items: Schema, path: str, keys: list[str]) -> None:
    """Freeze the items of a list map. Old and new items correspond by key, so the keys need no rule."""
    held = {key: items["properties"][key] for key in keys}
    for key in keys:
        items["properties"][key] = {**held[key], MUTABLE_KEY: True}
    freeze(items, f"{path}[]")
    items["properties"].update(held)


def _frozen(rule: str, path: str, name: str) -> dict[str, Any]:
    return Rule(rule, f"{path}: {_REMEDY}", field_path=f".{name}", forbidden=True).render()


def _always_there(schema: Schema, name: str) -> bool:
    return name in schema.get("required", ()) or "default" in schema["properties"][name]


def _has_mutable(schema: Schema) -> bool:
    return any(child.get(MUTABLE_KEY) or _has_mutable(child) for child in schema.get("properties", {}).values())


def declare_legacy(schema: Schema, path: str, keys: tuple[LegacyKey, ...]) -> None:
    """Declare old keys below ``path``, each always refused with a sentence that names the successor."""
    for key in keys:
        schema["properties"][key.key] = key.declare(path)
