"""What ``--node`` says about a node: its size and its simulated accelerators."""

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from fdl_cli.local.errors import LocalError

_MEMORY = re.compile(r"(\d+)(Ki|Mi|Gi)")
_UNIT = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,28}[a-z0-9])?")
_CLUSTER_NAME = re.compile(r"[a-z]([a-z0-9-]{0,18}[a-z0-9])?")
_ARCH = {"nvidia": re.compile(r"sm_(\d+)(\d)[a-z]?"), "amd": re.compile(r"gfx(\d+)([0-9a-f])([0-9a-f])")}
MOST_DEVICES = 64
LEAST_MEMORY = 64 * 2**20
RESERVED_NAMES = ("control",)


@dataclass(frozen=True)
class Accelerators:
    """Simulated devices of one vendor in one node: ``count`` of architecture ``arch``."""

    vendor: str
    count: int
    arch: str


@dataclass(frozen=True)
class NodeSpec:
    """A node to make. ``cpu`` in cores, ``memory`` in bytes; None means all that the machine has."""

    name: str | None = None
    cpu: Decimal | None = None
    memory: int | None = None
    accelerators: tuple[Accelerators, ...] = ()

    @property
    def simulated(self) -> bool:
        """Whether the node claims devices that do not exist."""
        return any(a.count for a in self.accelerators)


def parse_memory(text: str) -> int:
    """Bytes of a size such as ``512Mi``; at least 64Mi, below which not even a pod starts."""
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise LocalError(f"memory={text} is not a size. Write a whole number with Ki, Mi or Gi, such as memory=2Gi.")
    size = int(match[1]) * _UNIT[match[2]]
    if size < LEAST_MEMORY:
        raise LocalError(f"memory={text} is too small for a pod. Give at least 64Mi.")
    return size


def parse_cpu(text: str) -> Decimal:
    """Cores of a size such as ``0.5`` or ``500m``; at least 0.05, at most three decimals."""
    try:
        cores = Decimal(text[:-1]) / 1000 if text.endswith("m") else Decimal(text)
    except InvalidOperation:
        raise LocalError(f"cpu={text} is not a number of cores. Write for instance cpu=0.5 or cpu=500m.") from None
    if not cores.is_finite() or cores < Decimal("0.05") or cores != round(cores, 3):
        raise LocalError(f"cpu={text} is not a usable number of cores. Give 0.05 or more, in steps of 0.001.")
    return cores


def parse_accelerators(vendor: str, text: str) -> Accelerators:
    """Devices of a text such as ``2:sm_90`` (vendor nvidia) or ``1:gfx942`` (vendor amd)."""
    number, _, arch = text.partition(":")
    example = "nvidia=2:sm_90" if vendor == "nvidia" else "amd=1:gfx942"
    if not number.isdecimal() or int(number) > MOST_DEVICES:
        raise LocalError(f"{vendor}={text} has no count from 0 to {MOST_DEVICES}. Write for instance {example}.")
    if int(number) == 0 and not arch:
        return Accelerators(vendor, 0, "")
    if _ARCH[vendor].fullmatch(arch) is None:
        raise LocalError(f"{vendor}={text} has no architecture of that vendor. Write for instance {example}.")
    return Accelerators(vendor, int(number), arch)


def parse_node(text: str) -> NodeSpec:
    """Reads one ``--node``: ``key=value`` pairs with commas between; keys name, cpu, memory, nvidia, amd."""
    values: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = pair.partition("=")
        if not equals or key not in ("name", "cpu", "memory", "nvidia", "amd"):
            raise LocalError(
                f"--node {text}: {pair!r} is not understood. "
                "Use name=, cpu=, memory=, nvidia=COUNT:sm_NN, amd=COUNT:gfxNNN."
            )
        if key in values:
            raise LocalError(f"--node {text}: {key} is given twice. Give it once.")
        values[key] = value
    if not values:
        raise LocalError("--node is empty. Give for instance --node cpu=0.5,memory=2Gi.")
    name = values.get("name")
    if name is not None and (_NAME.fullmatch(name) is None or name in RESERVED_NAMES):
        raise LocalError(
            f"--node {text}: {name!r} cannot name a node. Use up to 30 of a-z, 0-9 and '-', not 'control'."
        )
    return NodeSpec(
        name=name,
        cpu=parse_cpu(values["cpu"]) if "cpu" in values else None,
        memory=parse_memory(values["memory"]) if "memory" in values else None,
        accelerators=tuple(parse_accelerators(v, values[v]) for v in ("nvidia", "amd") if v in values),
    )


def check_cluster_name(name: str) -> str:
    """The name itself, if a cluster can be called so."""
    if _CLUSTER_NAME.fullmatch(name) is None:
        raise LocalError(f"--name {name}: a cluster's name is 1 to 20 of a-z, 0-9 and '-', and begins with a letter.")
    return name


def plan_nodes(given: tuple[NodeSpec, ...], count: int | None) -> tuple[NodeSpec, ...]:
    """All nodes of a cluster, named: those given, then plain ones up to ``count`` (default: 3, or those given).

    A node without a name is called ``nodeN`` by its place.
    """
    total = max(count if count is not None else (len(given) or 3), len(given))
    if not 1 <= total <= 60:
        raise LocalError(f"--nodes {total}: a local cluster has 1 to 60 nodes.")
    padded = given + (NodeSpec(),) * (total - len(given))
    named = tuple(
        NodeSpec(s.name or f"node{i}", s.cpu, s.memory, s.accelerators) for i, s in enumerate(padded, start=1)
    )
    names = [s.name for s in named]
    for name in names:
        if names.count(name) > 1:
            raise LocalError(f"Two nodes would be called {name}. Give every --node another name=.")
    return named


def check_fits(nodes: tuple[NodeSpec, ...], cores: int, memory: int) -> None:
    """Refuses a node that is larger than the machine (``cores``; ``memory`` in bytes)."""
    for node in nodes:
        if node.cpu is not None and node.cpu > cores:
            raise LocalError(f"node {node.name}: cpu={node.cpu} is more than the machine's {cores}. Give less.")
        if node.memory is not None and node.memory > memory - 2**28:
            raise LocalError(
                f"node {node.name}: memory={node.memory >> 20}Mi is more than the machine's {memory >> 20}Mi "
                "less 256Mi for the node itself. Give less."
            )
