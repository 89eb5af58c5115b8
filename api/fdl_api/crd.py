"""The CustomResourceDefinitions, generated from the models; ``python -m fdl_api.crd`` writes or checks them.

``--write crds/ --docs docs/reference/`` regenerates, ``--check`` with the same folders exits with 1 and
names each file that differs.
"""

import argparse
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from fdl_api import legacy
from fdl_api.cluster import FdlCluster
from fdl_api.model import VALIDATIONS, Model
from fdl_api.reference import page
from fdl_api.run import FdlRun
from fdl_api.schema import Schema, declare_legacy, freeze, structural, without_defaults
from fdl_api.version import API_VERSION, GROUP

CATEGORY: Final = "fdl"
_HEADER: Final = "# Generated from fdl_api by 'python -m fdl_api.crd'; do not edit.\n"


def run_crd() -> dict[str, Any]:
    """CRD of FdlRun."""
    schema = _root(FdlRun)
    spec = schema["properties"]["spec"]
    freeze(spec, "spec")
    declare_legacy(spec, "spec", legacy.SPEC)
    declare_legacy(spec["properties"]["cohorts"]["items"], "spec.cohorts[]", legacy.COHORT)
    columns = [
        _column("Phase", ".status.phase", "Where the run stands."),
        _column("Mode", ".spec.mode", "When ranks average, and over what."),
        _column("Members", ".status.summary.members", "Active and wanted members."),
        _column("Progress", ".status.summary.progress", "Share of samples done."),
        _column("Goodput", ".status.summary.goodput", "Training efficiency."),
        _column("Reason", ".status.summary.reason", "Why the run stands there."),
        _AGE,
        _column("Message", ".status.summary.message", "The same as a sentence.", wide=True),
    ]
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    names = _names("FdlRun", "fdr")
    return _crd(names, "Namespaced", schema, columns, {"status": {}, "scale": scale})


def cluster_crd() -> dict[str, Any]:
    """CRD of FdlCluster."""
    columns = [
        _column("Nodes", ".status.summary.nodes", "Ready and all nodes."),
        _column("Devices", ".status.summary.devices", "Devices by vendor."),
        _AGE,
    ]
    return _crd(_names("FdlCluster", "fdc"), "Cluster", _root(FdlCluster), columns, {"status": {}})


def _root(model: type[Model]) -> Schema:
    """Schema of a whole object. Of the metadata, only the name is declared: its bound keeps rules cheap."""
    schema = structural(model)
    properties = schema["properties"]
    properties["apiVersion"] = {"type": "string", "description": f"Always {GROUP}/{API_VERSION}."}
    properties["kind"] = {"type": "string", "description": f"Always {model.__name__}."}
    properties["metadata"] = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 253}}}
    properties["status"] = without_defaults(properties["status"])
    return schema


def _names(kind: str, short: str) -> dict[str, Any]:
    singular = kind.lower()
    return {
        "kind": kind,
        "listKind": f"{kind}List",
        "plural": f"{singular}s",
        "singular": singular,
        "shortNames": [short],
        "categories": [CATEGORY],
    }


def _column(name: str, path: str, description: str, *, wide: bool = False) -> dict[str, Any]:
    """A column of strings. A wide one is only shown by ``kubectl get -o wide``."""
    column: dict[str, Any] = {"name": name, "type": "string", "jsonPath": path, "description": description}
    return column | {"priority": 1} if wide else column


_AGE: Final = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}


def _crd(
    names: dict[str, Any], scope: str, schema: Schema, columns: list[dict[str, Any]], subresources: dict[str, Any]
) -> dict[str, Any]:
    version = {
        "name": API_VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": subresources,
        "additionalPrinterColumns": columns,
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.{GROUP}"},
        "spec": {"group": GROUP, "names": names, "scope": scope, "versions": [version]},
    }


def rules_of(crd: dict[str, Any]) -> list[dict[str, Any]]:
    """All rules of a CRD, outermost first."""
    found: list[dict[str, Any]] = []

    def walk(schema: Schema) -> None:
        found.extend(schema.get(VALIDATIONS, ()))
        for child in schema.get("properties", {}).values():
            walk(child)
        for key in ("items", "additionalProperties"):
            if key in schema:
                walk(schema[key])

    walk(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    return found


class _Dumper(yaml.SafeDumper):
    """YAML without anchors: equal parts are written out, so that kubectl and people can read them."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def render(crd: dict[str, Any]) -> str:
    """A CRD as the text of its file."""
    return _HEADER + yaml.dump(crd, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


def generated(crds: Path, docs: Path) -> dict[Path, str]:
    """All generated files with their text."""
    run, cluster = run_crd(), cluster_crd()
    return {
        crds / "fdlruns.yaml": render(run),
        crds / "fdlclusters.yaml": render(cluster),
        docs / "fdlrun.md": page(run),
        docs / "fdlcluster.md": page(cluster),
    }


def stale(files: dict[Path, str]) -> list[Path]:
    """Files that are absent or differ from what would be generated."""
    return [path for path, text in files.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]


def main(arguments: list[str] | None = None) -> int:
    """Write or check the generated files; the exit code is 1 when a check finds a difference."""
    parser = argparse.ArgumentParser(prog="python -m fdl_api.crd", description=(__doc__ or "").splitlines()[0])
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", type=Path, nargs="?", const=Path("crds"), metavar="DIR", help="write the CRDs there")
    action.add_argument(
        "--check", type=Path, nargs="?", const=Path("crds"), metavar="DIR", help="compare the CRDs there"
    )
    parser.add_argument("--docs", type=Path, default=Path("docs/reference"), metavar="DIR", help="reference pages")
    options = parser.parse_args(arguments)
    files = generated(options.write or options.check, options.docs)
    if options.check:
        differing = stale(files)
        for path in differing:
            print(f"{path}: differs from the models; run 'python -m fdl_api.crd --write'", file=sys.stderr)
        return 1 if differing else 0
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
