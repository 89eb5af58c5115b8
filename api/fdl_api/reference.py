"""Reference page of a resource, from its CRD: each field with type, default, bounds and meaning, then the rules."""

from typing import Any

from fdl_api.model import VALIDATIONS

Schema = dict[str, Any]


def page(crd: dict[str, Any]) -> str:
    """The page as Markdown."""
    names = crd["spec"]["names"]
    version = crd["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    group = crd["spec"]["group"]
    lines = [
        f"# {names['kind']}",
        "",
        "<!-- Generated from fdl_api by 'python -m fdl_api.crd'; do not edit. -->",
        "",
        schema["description"],
        "",
        f"API version `{group}/{version['name']}`, {crd['spec']['scope'].lower()}, "
        f"short name `{names['shortNames'][0]}`, category `{names['categories'][0]}`.",
        "",
    ]
    for part in ("spec", "status"):
        lines += _object(schema["properties"][part], part)
    lines += ["## Rules", "", "What the API server refuses, besides the bounds above:", ""]
    lines += [f"- {sentence}" for sentence in _sentences(schema)]
    return "\n".join(lines) + "\n"


def _object(schema: Schema, path: str) -> list[str]:
    """Section of one object, followed by those of the objects in it."""
    lines = [
        f"## {path}",
        "",
        schema.get("description", ""),
        "",
        "| field | type | default | meaning |",
        "| --- | --- | --- | --- |",
    ]
    below: list[str] = []
    for name, child in schema["properties"].items():
        if _refused(child):
            continue
        default = "required" if name in schema.get("required", ()) else _default(child)
        lines.append(f"| `{name}` | {_type(child)} | {default} | {_cell(child.get('description', ''))} |")
        inner, where = child, f"{path}.{name}"
        if child.get("type") == "array":
            inner, where = child["items"], f"{where}[]"
        if "properties" in inner:
            below += _object(inner, where)
    return [*lines, "", *below]


def _refused(schema: Schema) -> bool:
    return any(entry["rule"] == "false" for entry in schema.get(VALIDATIONS, ()))


def _default(schema: Schema) -> str:
    value = schema.get("default")
    if value is None or "properties" in schema:
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _type(schema: Schema) -> str:
    if schema.get("x-kubernetes-int-or-string"):
        return "integer or string"
    kind = str(schema["type"])
    if "enum" in schema:
        return "one of " + ", ".join(f"`{value}`" for value in schema["enum"])
    if kind == "array":
        return f"list of {_type(schema['items'])}{_bounds(schema, 'Items')}"
    if "additionalProperties" in schema:
        return f"map of {_type(schema['additionalProperties'])}{_bounds(schema, 'Properties')}"
    return kind + _bounds(schema, "imum") + _bounds(schema, "Length")


def _bounds(schema: Schema, of: str) -> str:
    low, high = schema.get(f"min{of}"), schema.get(f"max{of}")
    unit = {"Items": " items", "Properties": " entries", "Length": " characters"}.get(of, "")
    if low is not None and high is not None:
        above = "above " if schema.get("exclusiveMinimum") else ""
        return f", {above}{low} to {high}{unit}"
    if high is not None:
        return f", at most {high}{unit}"
    return f", at least {low}{unit}" if low is not None else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _sentences(schema: Schema) -> list[str]:
    """Messages of all rules, without repeats. What cannot be changed after creation is said in one line."""
    found = [entry["message"] for entry in schema.get(VALIDATIONS, ()) if "oldSelf" not in entry["rule"]]
    children = [*schema.get("properties", {}).values()]
    children += [schema[key] for key in ("items", "additionalProperties") if key in schema]
    for child in children:
        found += _sentences(child)
    return list(dict.fromkeys(found))
