"""Reference page of the checks, from the catalogue."""

from fdl_api.checks import CHECKS, GROUPS, CheckInfo

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
    return "\n".join(lines).rstrip() + "\n"


def _looks(check: CheckInfo) -> str:
    return _cell(f"{check.looks_at}.{_PLACES[check.place]}{_MAKERS[check.by]}")


def _rows(check: CheckInfo) -> list[str]:
    return [
        f"| `{check.name}` | `{entry.reason}` | {entry.severity}{' (blocking)' if entry.blocking else ''} | "
        f"{entry.persistence} | {_cell(entry.when)} | {_cell(entry.remedy)} |"
        for entry in check.findings
    ]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
