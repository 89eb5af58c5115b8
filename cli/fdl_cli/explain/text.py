"""What was found as tables. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fdl_api import run_env
from fdl_api.reasons import Ended
from fdl_api.run import Condition, MemberPhase
from fdl_cli import screen
from fdl_cli.explain.judge import CohortView, Run, Verdict
from fdl_cli.probe.rows import natural
from fdl_cli.screen import named, words

LACKS: Final = "lacks label "
MAX_NAMED: Final = 8
FITS: Final = {"yes": "green", "full": "yellow", "no": "red"}
ORDER: Final = ("yes", "full", "no")
TROUBLE: Final = ("Placeable", "CoordinatorReady", "Formed", "Progressing", "CheckpointDurable", "Failed")
"""Conditions that tell what keeps a run from going on: Failed when it is true, the others when they are not."""


def run(found: Run, views: Iterable[CohortView], width: int) -> RenderableType:
    """A run: where it stands, and for each cohort all nodes."""
    parts: list[RenderableType] = [_head(found)]
    if found.unknown:
        told = ", ".join(found.unknown[:MAX_NAMED])
        parts.append(words(f"this release of fdl does not know {told}, and judges without", style="yellow"))
    parts += list(_conditions(found.status.conditions))
    parts += list(_environment(found))
    for view in views:
        parts += [Text(""), _cohort(found, view)]
        if view.sentence:
            parts.append(words(view.sentence, style="red"))
        parts += [Text(""), nodes(view.verdicts, width)]
    return Group(*parts)


def _head(found: Run) -> Text:
    status = found.status
    text = words(f"run {found.namespace}/{found.name}", style="bold")
    text.append(f"  {status.phase or 'not seen by the operator yet'}", style="default")
    facts = [f"mode {found.spec.mode}"]
    if status.summary.members:
        facts.append(f"{status.summary.members} members")
    if status.training is not None and status.training.window:
        facts.append(f"window {status.training.window}, anchor {status.training.anchor}")
        facts.append(f"{status.training.samples_per_second:.0f} samples/s")
    text.append(f"  {', '.join(facts)}", style="default")
    return text


def _conditions(conditions: Iterable[Condition]) -> Iterator[Text]:
    for condition in conditions:
        bad = "True" if condition.type == "Failed" else "False"
        if condition.type in TROUBLE and condition.status == bad and condition.message:
            yield words(
                f"{condition.type} is {condition.status}, {condition.reason}: {condition.message}", style="yellow"
            )


def _environment(found: Run) -> Iterator[Text]:
    """What is wrong in the run's environment, by the operator's own rule; a run that failed for it has said so."""
    if any(each.status == "True" and each.reason == Ended.ENVIRONMENT_FORBIDDEN for each in found.status.conditions):
        return
    for check in run_env.found(found.spec):
        style = "red" if check.severity == "fail" else "yellow"
        yield words(f"{check.severity.upper()} {check.name}/{check.reason}: {check.message}", style=style)
        yield words(f"-> {check.remedy}", style="green")


def _cohort(found: Run, view: CohortView) -> Text:
    cohort = view.cohort
    what = "ranks" if cohort.vendor == "cpu" else "devices"
    each = f"{cohort.devices_per_replica} {what if cohort.devices_per_replica != 1 else what[:-1]} a member"
    text = words(f"cohort {cohort.name}", style="bold")
    nccl = f", NCCL {view.nccl}" if view.nccl else ""
    variant = f", variant {cohort.variant}" if not cohort.image and not found.spec.trainer.image else ", own image"
    told = f"  vendor {cohort.vendor}, {each}{variant}{nccl}; {view.ready} of {view.wanted} members take part"
    text.append(told, style="default")
    return text


def nodes(verdicts: Sequence[Verdict], width: int) -> RenderableType:
    """A cohort's nodes, those that fit first; those that miss the same in one row: of a large cluster most do."""
    shown = _table("NODE", width)
    alike: dict[tuple[str, ...], list[Verdict]] = {}
    for verdict in sorted(verdicts, key=lambda each: (ORDER.index(each.fits), natural(each.node))):
        single = verdict.fits != "no" or bool(verdict.members)
        alike.setdefault((verdict.node,) if single else ("", *verdict.why), []).append(verdict)
    for group in alike.values():
        shown.add_row(words(named([verdict.node for verdict in group], MAX_NAMED)), *_cells(group[0]))
    return shown


def node(found: Iterable[tuple[Run, CohortView]], width: int) -> RenderableType:
    """One node: the cohorts of all runs, each with what it finds there."""
    shown = _table("RUN, COHORT", width)
    for each, view in found:
        for verdict in view.verdicts:
            shown.add_row(words(f"{each.namespace}/{each.name} {view.cohort.name}"), *_cells(verdict))
    return shown


def _table(first: str, width: int) -> Table:
    shown = screen.table(width)
    shown.add_column(first, overflow="fold", min_width=12)
    shown.add_column("FITS", no_wrap=True)
    shown.add_column("ROOM", no_wrap=True, justify="right")
    shown.add_column("MEMBERS", overflow="fold")
    for name in ("MS/BATCH", "QUOTA"):
        shown.add_column(name, no_wrap=True, justify="right")
    shown.add_column("WHY", overflow="fold", min_width=24, ratio=1)
    return shown


def _cells(verdict: Verdict) -> Iterator[Text]:
    yield words(verdict.fits, style=FITS[verdict.fits])
    yield words("-" if verdict.fits == "no" else "?" if verdict.room is None else str(verdict.room))
    yield words(_members(verdict) or "-")
    speed = verdict.speed
    about = "" if speed is None or speed.measured else "~"
    yield words("-" if speed is None else f"{about}{speed.ms:.1f}")
    yield words("-" if speed is None else f"{about}{speed.quota}")
    gets = f"gets variant {verdict.variant}" if verdict.variant else "suits"
    yield words("\n".join(_told(verdict.why)) if verdict.why else gets)


def _told(why: Sequence[str]) -> Iterator[str]:
    """The sentences, with all missing labels in one."""
    missing = [sentence.removeprefix(LACKS) for sentence in why if sentence.startswith(LACKS)]
    if missing:
        yield f"{LACKS.rstrip()}{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
    yield from (sentence for sentence in why if not sentence.startswith(LACKS))


def _members(verdict: Verdict) -> str:
    names = [
        f"{member.cohort}-{member.ordinal}"
        + ("" if member.phase is MemberPhase.RUNNING else f" ({str(member.phase).lower()})")
        for member in verdict.members
    ]
    return ", ".join(names)


LEGEND: Final = (
    "ROOM: members more that the node can take. MS/BATCH, QUOTA: of a rank, ~ predicted from nodes of the same kind."
)


def legend(verdicts: Iterable[Verdict]) -> Text:
    """What the columns mean, where they say anything."""
    told = any(verdict.fits != "no" for verdict in verdicts)
    return words(LEGEND if told else "", style="dim")
