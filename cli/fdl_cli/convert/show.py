"""The account of a conversion as text, and the manifests as YAML. Pure."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import yaml

from fdl_cli.convert.audit import Finding
from fdl_cli.convert.build import Manifests
from fdl_cli.screen import named, printable

PROBLEMS: Final = ("unknown", "wrong")
MAX_PLACES: Final = 4
"""Places of a key that are named."""


def manifests(made: Manifests, files: Sequence[str]) -> str:
    """All objects as one YAML text; what is left to do stands above them, since the file outlives the terminal."""
    head = [f"# Made by fdl convert from {', '.join(files)}."]
    if made.todo:
        head.append("# Before you apply it:")
        head += [f"# - {line}" for line in made.todo]
    head = [" ".join(printable(line).splitlines()) for line in head]
    bodies = [yaml.dump(one, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=110) for one in made.objects]
    return "\n".join(head) + "\n" + "---\n".join(["", *bodies]).removeprefix("\n")


class _Plain(yaml.SafeDumper):
    """Without anchors: what is the same in two places is written twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def account(findings: Sequence[Finding], made: Manifests, files: Sequence[str], width: int) -> list[tuple[str, str]]:
    """Lines for people, each with its style: ``head``, ``bad`` or nothing.

    Args:
        findings: every key of the files.
        made: what was made of them.
        files: names of the files.
        width: characters of a line.
    """
    single = len(files) == 1
    lines: list[tuple[str, str]] = [(line, "") for line in _wrapped(_summary(findings, files), width, "", "  ")]
    problems = [each for each in findings if each.verdict in PROBLEMS]
    if problems:
        lines += _head("Not understood")
        lines += [(line, "bad") for each in problems for line in _problem(each, single, width)]
    if none := [each for each in findings if each.verdict == "none"]:
        lines += _head("Without a counterpart: what does its work here")
        lines += [(line, "") for line in _by_sentence(none, single, width)]
    if carried := [each for each in findings if each.verdict == "carried"]:
        lines += _head("Carried over")
        lines += [(line, "") for line in _by_sentence(carried, single, width, arrow=True)]
    for title, sentences in (("Not quite as it was", made.notes), ("Before you apply it", made.todo)):
        if sentences:
            lines += _head(title)
            lines += [(line, "") for sentence in sentences for line in _wrapped(sentence, width, "  - ", "    ")]
    return lines


def _summary(findings: Iterable[Finding], files: Sequence[str]) -> str:
    verdicts = [each.verdict for each in findings]
    bad = sum(verdict in PROBLEMS for verdict in verdicts)
    parts = [f"{verdicts.count('carried')} keys carried over", f"{verdicts.count('none')} without a counterpart"]
    return f"{', '.join(files)}: {', '.join([*parts, f'{bad} not understood'])}"


def _head(title: str) -> list[tuple[str, str]]:
    return [("", ""), (title, "head")]


def _problem(finding: Finding, single: bool, width: int) -> list[str]:
    return _wrapped(f"{_place(finding, single)}: {finding.path} {finding.text}", width, "  ", "    ")


def _by_sentence(findings: Iterable[Finding], single: bool, width: int, *, arrow: bool = False) -> Iterator[str]:
    """Keys that have the same to be said of them stand together, with the lines where they are.

    ``arrow`` puts what they became behind them, else the sentence comes below.
    """
    groups: dict[str, dict[str, list[str]]] = {}
    for each in findings:
        key = each.key + (" (given up by floDl)" if each.legacy else "")
        places = groups.setdefault(each.text, {}).setdefault(key, [])
        places.append(each.place.rpartition(":")[2] if single else each.place)
    for sentence, keys in groups.items():
        told = ", ".join(
            f"{key} ({'line' if single else 'in'} {named(places, MAX_PLACES)})" for key, places in keys.items()
        )
        if arrow:
            yield from _wrapped(f"{told} -> {sentence}", width, "  ", "      ")
        else:
            yield from _wrapped(told, width, "  ", "  ")
            yield from _wrapped(sentence, width, "      ", "      ")


def _place(finding: Finding, single: bool) -> str:
    return f"line {finding.place.rpartition(':')[2]}" if single else finding.place


def _wrapped(text: str, width: int, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
