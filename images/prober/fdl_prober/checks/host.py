"""Checks of the rest of the machine."""

from collections.abc import Iterator
from typing import Final

from fdl_api import skew
from fdl_api.checks import machine as catalogue
from fdl_api.report import Check
from fdl_prober.facts import Facts

GIB: Final = 1 << 30
LEAST_MEMORY_BYTES: Final = 4 * GIB
LEAST_CPUS: Final = 1.0
LEAST_PROCESSES: Final = 512


def clock(facts: Facts) -> Iterator[Check]:
    """Whether the node's clock agrees with the API server's."""
    offset = facts.host.clock_offset_seconds
    if offset is None:
        return
    away = skew.away(offset)
    # The limit and not the offset: a sentence that changes with every look would be written with every look.
    if away > skew.FAR_SECONDS:
        yield catalogue.CLOCK.found("far-off", f"is more than {skew.FAR_SECONDS:g} s from the API server's")
    elif away > skew.WARN_SECONDS:
        yield catalogue.CLOCK.found("skewed", f"is more than {skew.WARN_SECONDS:g} s from the API server's")
    else:
        yield catalogue.CLOCK.passed("agrees with the API server's")


def ports(facts: Facts) -> Iterator[Check]:
    """Whether somebody else has one of fdl's ports, outside of a cluster."""
    for listener in facts.seen.box.listeners if facts.seen.box else ():
        owner = listener.owner or "a program of another user"
        yield catalogue.PORTS.found("in-use", f"{owner} listens on it", str(listener.port))


def stale_processes(facts: Facts) -> Iterator[Check]:
    """Processes that hold device memory and that nobody answers for: those of pods are their kubelet's."""
    for holder in facts.seen.holders:
        left = holder.orphan if facts.local else not holder.in_pod
        if left and holder.bytes >= GIB // 16:
            much = f"at least {holder.bytes // GIB} GiB" if holder.bytes >= GIB else "less than 1 GiB"
            what = f"{holder.name or 'a process'} ({holder.pid}) holds {much}"
            whose = "its starter is gone" if facts.local else "it belongs to no pod"
            yield catalogue.STALE_PROCESSES.found("holding", f"{what}, and {whose}", f"{holder.vendor} {holder.pid}")


def limits(facts: Facts) -> Iterator[Check]:
    """Limits that training would run into, outside of a cluster."""
    if facts.seen.box is None:
        return
    own, info = facts.seen.box.limits, catalogue.LIMITS
    if own.memory_bytes is not None and own.memory_bytes < LEAST_MEMORY_BYTES:
        yield info.found("memory", f"{own.memory_bytes / GIB:.1f} GiB of memory may be used")
    if own.cpus is not None and own.cpus < LEAST_CPUS:
        yield info.found("cpu", f"{own.cpus:g} processors may be used")
    if own.processes is not None and own.processes < LEAST_PROCESSES:
        yield info.found("processes", f"{own.processes} processes and threads may run")


def host_survey(facts: Facts) -> Iterator[Check]:
    """Sources that gave no answer. AMD's topology is told with its driver."""
    for name, reason in facts.seen.silent.items():
        if name != "kfd":
            yield catalogue.HOST_SURVEY.found("no-answer", f"the look at {name}: {reason}", name)


ALL = (clock, ports, stale_processes, limits, host_survey)
