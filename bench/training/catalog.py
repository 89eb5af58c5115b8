"""The methods that are measured, with the settings that they get and why. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from fdl_api import not_yet
from fdl_api.run import ElcheSpec, Mode

EVERY = 16
"""Steps between averages of the peers with one H for all ranks. Not swept: no H can lift their bound of
N r_min / sum of rates."""

HIVE_BATCHES = 512


@dataclass(frozen=True, slots=True)
class Method:
    """One thing to measure.

    Attributes:
        name: as it is printed; unique.
        kind: ``solo``, ``fastest``, ``fdl`` or a program of :mod:`bench.training.peers`.
        about: its settings in words, for the page.
        family: ``reference``, ``peer``, ``fdl`` or ``ablation``.
        settings: of a peer.
        package: the package from PyPI that it needs, a key of :data:`bench.training.packages.PACKAGES`.
        mode: of fdl.
        knobs: of fdl's ElcheSpec, by field name; the first set that the release has is taken.
        device: ``cuda`` if it works only there.
        least: measured seconds that it needs at least.
        every: it takes part in every n-th round of its scenario.
    """

    name: str
    kind: str
    about: str
    family: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    package: str = ""
    mode: str = ""
    knobs: tuple[Mapping[str, Any], ...] = ({},)
    device: str = ""
    least: float = 0.0
    every: int = 1


def _fdl(name: str, mode: Mode, about: str, *knobs: Mapping[str, Any], family: str = "fdl", device: str = "") -> Method:
    return Method(name, "fdl", about, family, mode=mode.value, knobs=knobs or ({},), device=device)


def _ablation(name: str, about: str, *knobs: Mapping[str, Any]) -> Method:
    return _fdl(name, Mode.CPU_CADENCE, f"cpu-cadence; {about}", *knobs, family="ablation")


def _fixed(anchor: int) -> Method:
    about = f"the slowest rank does {anchor} batches in every window"
    return _ablation(f"fdl fixed anchor {anchor}", about, {"anchor": anchor, "max_anchor": anchor})


METHODS: tuple[Method, ...] = (
    Method(
        "solo", "solo", "every rank trains for itself, all at once: the rates that all figures refer to", "reference"
    ),
    Method("fastest alone", "fastest", "the fastest rank alone, the others idle", "reference"),
    Method("DDP", "ddp", "equal batches; gradient_as_bucket_view, static_graph, no broadcast of buffers", "peer"),
    Method(
        "DDP proportional",
        "ddp",
        "the same global batch, split so that the ranks' steps take equal time (tuned in two solo slices before the "
        "first round, then static); losses weighted so that the mean gradient is the global batch's",
        "peer",
        settings={"proportional": True},
    ),
    Method(
        "PostLocalSGD",
        "postlocal",
        f"torch's, from the first step, an average every {EVERY} steps",
        "peer",
        {"every": EVERY},
    ),
    Method(
        "torchft LocalSGD",
        "torchft",
        f"an average every {EVERY} steps; quorum tick 10 ms, join 0.5 s, synchronous quorum",
        "peer",
        {"every": EVERY},
        "torchft",
    ),
    Method(
        "torchft DiLoCo",
        "torchft",
        f"every {EVERY} steps; outer SGD 0.7 with Nesterov 0.9, bucketized; quorum as above",
        "peer",
        {"every": EVERY, "outer": True},
        "torchft",
    ),
    Method(
        "hivemind",
        "hivemind",
        f"local updates; an average when {HIVE_BATCHES} batches are done together (each takes about a second, so that "
        "fewer are slower); matchmaking 1 s, averaging 15 s; slices of 30 s, in every sixth round",
        "peer",
        {"target_batches": HIVE_BATCHES},
        "hivemind",
        least=30.0,
        every=6,
    ),
    _fdl("fdl cpu-cadence", Mode.CPU_CADENCE, "defaults"),
    _fdl("fdl cpu-async", Mode.CPU_ASYNC, "defaults: averages overlap with compute; cpu-cadence is the blocking form"),
    _fdl("fdl cpu-sync", Mode.CPU_SYNC, "defaults: an average after each batch"),
    _fdl("fdl nccl-cadence", Mode.NCCL_CADENCE, "defaults", device="cuda"),
    _fdl("fdl nccl-sync", Mode.NCCL_SYNC, "defaults: an average after each batch", device="cuda"),
    _fixed(1),
    _fixed(4),
    _fixed(16),
    _ablation("fdl unweighted", "all ranks weigh the same", {"weights": "uniform"}, {"gamma": 0.0}),
    replace(
        _ablation("fdl tensor by tensor", "one all-reduce for every tensor instead of one for all"),
        settings={"tensor_by_tensor": True},
    ),
    _ablation("fdl bf16", "parameters travel as bf16", {"bf16_wire": True}),
)

BY_NAME = {method.name: method for method in METHODS}


def knobs_or_refusal(
    method: Method, rows: Sequence[not_yet.NotYet] = not_yet.RUN
) -> tuple[Mapping[str, Any] | None, str]:
    """The first knobs of one of fdl's methods that this release has, or None and why it has none.

    Args:
        method: of kind ``fdl``.
        rows: the refused values.
    """
    for row in rows:
        if row.field == "mode" and row.value == method.mode:
            return None, row.rule().message
    reason = ""
    for knobs in method.knobs:
        reason = _refused(knobs, rows)
        if not reason:
            return knobs, ""
    return None, reason


def _refused(knobs: Mapping[str, Any], rows: Sequence[not_yet.NotYet]) -> str:
    try:
        written = ElcheSpec.model_validate(dict(knobs)).model_dump(by_alias=True, mode="json", include=set(knobs))
    except ValidationError:
        return f"spec.elche has no such field or value in this release: {', '.join(knobs)}"
    for row in rows:
        alias = row.field.removeprefix("elche.")
        # A row without a value refuses every value that is not the default, and knobs are never that.
        if alias != row.field and alias in written and row.value in (None, str(written[alias]).lower()):
            return row.rule().message
    return ""
