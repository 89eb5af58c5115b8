"""What a member asks of a node's resources, and what is left there. Pure; amounts are in Kubernetes' base units."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from kubernetes.utils.quantity import parse_quantity

from fdl_api import labels
from fdl_api.run import Cohort, TrainerSpec, Vendor

GIB: Final = Decimal(1 << 30)

Amounts = dict[str, Decimal]

_parse: Final[Callable[[str], Decimal]] = parse_quantity


@dataclass(frozen=True, slots=True)
class Space:
    """What a node has.

    Attributes:
        total: what pods may use in all.
        free: what no pod has reserved; ``None`` when the pods are not known.
    """

    total: Amounts
    free: Amounts | None


def amounts(quantities: Mapping[str, Any] | None) -> Amounts:
    """Quantities as numbers; what cannot be read counts as nothing."""
    found: Amounts = {}
    for name, text in (quantities or {}).items():
        try:
            found[name] = _parse(str(text))
        except ValueError:
            found[name] = Decimal(0)
    return found


def need(cohort: Cohort, trainer: TrainerSpec) -> Amounts:
    """What the scheduler reserves for a member: requests, limits where there is no request, devices, and one pod."""
    asked = cohort.resources or trainer.resources
    wanted = {**amounts(dict(asked.limits)), **amounts(dict(asked.requests)), "pods": Decimal(1)}
    if cohort.vendor is not Vendor.CPU:
        device = cohort.device_resource or labels.DEVICE_RESOURCES[cohort.vendor]
        wanted[device] = Decimal(cohort.devices_per_replica)
    return wanted


def space(node: Mapping[str, Any], pods: Iterable[Mapping[str, Any]] | None) -> Space:
    """What a node has.

    Args:
        node: the Node object.
        pods: all pods on it; ``None`` when they are not known.
    """
    total = amounts((node.get("status") or {}).get("allocatable"))
    if pods is None:
        return Space(total, None)
    free = dict(total)
    for pod in pods:
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            continue
        for name, amount in reserved(pod.get("spec") or {}).items():
            if name in free:
                free[name] -= amount
    return Space(total, free)


def reserved(spec: Mapping[str, Any]) -> Amounts:
    """What the scheduler reserves for a pod: containers and sidecars together, or what one init container needs."""
    running: Amounts = {"pods": Decimal(1)}
    starting: Amounts = {}
    for entry in spec.get("initContainers") or []:
        asked = amounts((entry.get("resources") or {}).get("requests"))
        if entry.get("restartPolicy") == "Always":
            _add(running, asked)
        else:
            starting = {
                name: max(starting.get(name, Decimal(0)), asked.get(name, Decimal(0))) for name in starting | asked
            }
    for entry in spec.get("containers") or []:
        _add(running, amounts((entry.get("resources") or {}).get("requests")))
    found = {name: max(running.get(name, Decimal(0)), starting.get(name, Decimal(0))) for name in running | starting}
    _add(found, amounts(spec.get("overhead")))
    return found


def _add(to: Amounts, more: Amounts) -> None:
    for name, amount in more.items():
        to[name] = to.get(name, Decimal(0)) + amount


def too_small(wanted: Amounts, have: Space) -> list[str]:
    """Resources of which a node has too little even when it is empty, as ends of sentences that begin with its name."""
    return [
        f"has {number(name, have.total.get(name, Decimal(0)))} {unit(name)} in all, and a member needs "
        f"{number(name, amount)}"
        for name, amount in wanted.items()
        if have.total.get(name, Decimal(0)) < amount
    ]


def short(wanted: Amounts, have: Space) -> list[str]:
    """Resources of which not enough is free for one member more."""
    if have.free is None:
        return []
    return [
        f"has {number(name, max(have.free.get(name, Decimal(0)), Decimal(0)))} of "
        f"{number(name, have.total.get(name, Decimal(0)))} {unit(name)} free, and a member needs {number(name, amount)}"
        for name, amount in wanted.items()
        if have.free.get(name, Decimal(0)) < amount
    ]


def room(wanted: Amounts, have: Space) -> int | None:
    """How many members more a node can take; ``None`` when its pods are not known."""
    if have.free is None:
        return None
    fits = [
        int(max(have.free.get(name, Decimal(0)), Decimal(0)) // amount) for name, amount in wanted.items() if amount
    ]
    return min(fits, default=0)


def number(resource: str, amount: Decimal) -> str:
    """An amount in the unit of :func:`unit`, with at most two digits behind the point."""
    value = amount / GIB if _is_bytes(resource) else amount
    return f"{value:.2f}".rstrip("0").rstrip(".")


def unit(resource: str) -> str:
    """What is counted: ``nvidia.com/gpu``, ``cpu``, ``GiB memory``."""
    return f"GiB {resource}" if _is_bytes(resource) else resource


def _is_bytes(resource: str) -> bool:
    return resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-")
