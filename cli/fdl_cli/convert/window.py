"""floDl's join window, counted in ranks, as spec.join, counted in members."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from fdl_api import not_yet
from fdl_api.run import JoinSpec
from fdl_cli.convert.hosts import Group

MAX_SECONDS: Final = 86400
DEFAULT: Final = JoinSpec()


def members_for(ranks: int, parts: list[Group]) -> int:
    """How many members always have at least so many ranks, whichever they are; at most all."""
    sizes = sorted(size for part in parts for size in [part.devices] * part.members)
    total = 0
    for at, size in enumerate(sizes, 1):
        total += size
        if total >= ranks:
            return at
    return len(sizes)


def window(cluster: Mapping[str, Any], parts: list[Group], note: Callable[[str], None]) -> dict[str, Any]:
    """``join`` and, for a run that a person starts, ``runPolicy``; with floDl's full strength where it says nothing.

    Args:
        cluster: floDl's block.
        parts: the cohorts.
        note: takes what is not quite as it was.
    """
    said: Mapping[str, Any] = (cluster.get("controller") or {}).get("join") or {}
    join: dict[str, Any] = {}
    total = sum(part.members for part in parts)
    if (least := said.get("min_rank_start")) is not None:
        join["minMembers"] = _members("min_rank_start", least, parts, note)
    else:
        join["minMembers"] = total
        note(
            f"floDl starts listed hosts at full strength, so spec.join.minMembers is {total}; a lower one starts early"
        )
    start = said.get("start", "auto")
    if (target := said.get("target_ranks")) is not None and start != "manual":
        join["targetMembers"] = max(_members("target_ranks", target, parts, note), join.get("minMembers", 1))
    for key, field, low in (("join_timeout", "windowSeconds", 0), ("max_join_timeout", "capSeconds", 1)):
        if (seconds := said.get(key)) is not None:
            join[field] = min(max(seconds, low), MAX_SECONDS)
    if join.get("windowSeconds", DEFAULT.window_seconds) > join.get("capSeconds", DEFAULT.cap_seconds):
        # One of them is a default then: the one that was said counts.
        said_window = "windowSeconds" in join
        join |= {"capSeconds": join["windowSeconds"]} if said_window else {"windowSeconds": join["capSeconds"]}
    policy: dict[str, Any] = {}
    if start != "auto":
        _start(start, join, policy, note)
    made: dict[str, Any] = {"join": join} if join else {}
    return made | ({"runPolicy": policy} if policy else {})


def _members(key: str, ranks: int, parts: list[Group], note: Callable[[str], None]) -> int:
    count = max(1, members_for(ranks, parts))
    have = sum(part.devices * part.members for part in parts)
    if ranks > have:
        note(f"{key} {ranks} is more than the {have} ranks of all cohorts; it is {count} members, that is all, now")
    elif count != ranks:
        note(f"{key} {ranks} counts ranks; fdl counts members, so it is {count}")
    return count


def _start(start: str, join: dict[str, Any], policy: dict[str, Any], note: Callable[[str], None]) -> None:
    refused = next((row for row in not_yet.RUN if row.field == "join.start" and row.value == start), None)
    if refused is None and start in ("manual", "hybrid"):
        join["start"] = start
    elif start == "manual":
        policy["suspend"] = True
        note("start manual: the run is made suspended; 'runPolicy.suspend: false' starts it")
    else:
        note(f"start {start} was left out; {refused.instead if refused else 'floDl knows auto, manual and hybrid'}")
