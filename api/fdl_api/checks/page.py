"""Reference page of the checks, from the catalogue."""

from fdl_api.checks import CHECKS, GROUPS, CheckInfo, Finding
from fdl_api.checks.conditions import CONDITIONS

_PLACES = {"both": "", "cluster": " Only in a cluster.", "local": " Only outside of a cluster."}
_MAKERS = {
    "prober": "",
    "operator": " Made by the operator.",
    "members": " Made by the members of a run, and told in its condition `Progressing` (GroupFails).",
}


def page() -> str:
    """The page as Markdown."""
    lines = [
        "# Checks",
        "",
        "<!-- Generated from api/fdl_api/checks by 'make generate'; do not edit. -->",
        "",
        "What the prober looks at on each node, and on a machine outside of a cluster with",
        "`python -m fdl_prober --local`. A check that does not apply is not in a report; one that found nothing wrong",
        "is there as `pass`.",
        "",
        "Severity: `warn` works, but a person should know; `unknown` could not be looked at, and nothing is concluded",
        "from it; `fail` does not work; with (blocking) no member is placed on the node. Class: `transient` may pass",
        "without a change of the machine, `permanent` needs a person.",
        "",
    ]
    for group in GROUPS:
        lines += [f"## {group}", "", "| check | finding | severity | class | found when | remedy |", "| --- " * 6 + "|"]
        for check in CHECKS:
            if check.group == group:
                lines += _rows(check)
        lines += ["", "What they look at:", ""]
        lines += [f"- `{check.name}`: {_looks(check)}" for check in CHECKS if check.group == group]
        lines.append("")
    lines += [*_conditions(), ""]
    return "\n".join(lines).rstrip() + "\n"


def _conditions() -> list[str]:
    lines = [
        "## Conditions of FdlCluster",
        "",
        "What only shows when all nodes are looked at together. Made by the operator; where all is well, or nothing",
        "is to compare, a condition has another reason than these.",
        "",
        "| condition | reason | severity | class | found when | remedy |",
        "| --- " * 6 + "|",
    ]
    for kind, entries in CONDITIONS.items():
        lines += [_row(kind, entry) for entry in entries]
    return lines


def _looks(check: CheckInfo) -> str:
    return _cell(f"{check.looks_at}.{_PLACES[check.place]}{_MAKERS[check.by]}")


def _rows(check: CheckInfo) -> list[str]:
    return [_row(check.name, entry) for entry in check.findings]


def _row(name: str, entry: Finding) -> str:
    blocking = " (blocking)" if entry.blocking else ""
    return (
        f"| `{name}` | `{entry.reason}` | {entry.severity}{blocking} | {entry.persistence} | {_cell(entry.when)} | "
        f"{_cell(entry.remedy)} |"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
