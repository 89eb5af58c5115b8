"""The chart's generated parts: its copy of the CRDs, its values schema, its reference page."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tools.generate.values import FdlValues

HEADER = "# Generated from crds/ by 'make generate'; do not edit.\n"


def crd_template(text: str) -> str:
    """A CRD as a template: kept when the release goes, left out when ``crds.install`` is false.

    Raises:
        ValueError: the CRD contains ``{{``, which Helm would take for its own.
    """
    if "{{" in text:
        raise ValueError("a CRD contains '{{', which Helm would expand: reword that description or rule")
    crd = yaml.safe_load(text)
    annotations = crd["metadata"].setdefault("annotations", {})
    annotations["helm.sh/resource-policy"] = "keep"
    body = yaml.safe_dump(crd, sort_keys=False, width=120, allow_unicode=True)
    return HEADER + "{{- if .Values.crds.install }}\n" + body + "{{- end }}\n"


def schema() -> dict[str, Any]:
    """JSON schema of the values (draft 2020-12, which Helm reads)."""
    content = FdlValues.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_plain(content)}


def defaults() -> dict[str, Any]:
    """The values that the model has by default; ``values.yaml`` must say the same."""
    return FdlValues().model_dump(by_alias=True, mode="json", exclude_none=True)


def page() -> str:
    """Reference page of the values as Markdown."""
    lines = [
        "# Values of the chart",
        "",
        "<!-- Generated from tools/generate/values.py by 'make generate'; do not edit. -->",
        "",
        "`helm install` refuses keys that are not in this table.",
        "",
        "| value | default | meaning |",
        "| --- | --- | --- |",
    ]
    lines += [f"| `{path}` | {default} | {meaning} |" for path, default, meaning in _rows(FdlValues, "", defaults())]
    return "\n".join(lines) + "\n"


def generated(root: Path) -> dict[Path, str]:
    """The chart's generated files with their content; the CRDs are read from ``crds/``."""
    files = {
        root / "charts/fdl/values.schema.json": json.dumps(schema(), indent=2) + "\n",
        root / "docs/reference/chart-values.md": page(),
    }
    for crd in sorted((root / "crds").glob("*.yaml")):
        files[root / "charts/fdl/templates/crds" / crd.name] = crd_template(crd.read_text())
    return files


def _plain(node: Any) -> Any:
    """Drop pydantic's titles, which only repeat the names."""
    if isinstance(node, dict):
        return {key: _plain(value) for key, value in node.items() if not (key == "title" and isinstance(value, str))}
    if isinstance(node, list):
        return [_plain(item) for item in node]
    return node


def _rows(model: type[BaseModel], prefix: str, values: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Path, default and meaning of each value below a model, objects opened, lists described by their items."""
    for name, field in model.model_fields.items():
        key = prefix + (field.alias or name)
        part = _model_of(field)
        default = values.get(field.alias or name, field.get_default(call_default_factory=True))
        if part and isinstance(default, dict):
            yield from _rows(part, key + ".", default)
            continue
        shown = "required" if field.is_required() else f"`{json.dumps(default)}`"
        yield key, shown, (field.description or "").replace("|", "\\|")
        if part:
            yield from _rows(part, key + ("[]." if get_origin(field.annotation) is list else "."), {})


def _model_of(field: FieldInfo) -> type[BaseModel] | None:
    """The model of a field or of its list's items, if it is one."""
    for candidate in (field.annotation, *get_args(field.annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None
