"""floDl's ``ddp`` settings as spec.elche. The two defaults differ, so only what the files say is written."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from fdl_api.run import ElcheSpec

MAX_BATCHES: Final = 100_000
DEFAULT: Final = ElcheSpec()


def elche(ddp: Mapping[str, Any], ranks: int, note: Callable[[str], None]) -> dict[str, Any]:
    """The knobs that the files set.

    Args:
        ddp: floDl's settings.
        ranks: ranks of all cohorts, for the number of partition ratios.
        note: takes what is not quite as it was.
    """
    knobs: dict[str, Any] = {}
    if isinstance(ddp.get("anchor"), int):
        knobs["anchor"] = _within("anchor", ddp["anchor"], 1, MAX_BATCHES, note)
    if (largest := ddp.get("max_anchor")) == 0:
        note("max_anchor 0 turns ElChe off in floDl; here a mode that ends in -sync averages after each batch")
    elif largest is not None:
        knobs["maxAnchor"] = _within("max_anchor", largest, 1, MAX_BATCHES, note)
    anchor, top = knobs.get("anchor", DEFAULT.anchor), knobs.get("maxAnchor", DEFAULT.max_anchor)
    if anchor > top:
        note(f"the anchor ({anchor}) is above max_anchor ({top}); both are {top} now")
        knobs |= {"anchor": top, "maxAnchor": top}
    if (target := ddp.get("overhead_target")) is not None:
        knobs["overheadTarget"] = _within("overhead_target", float(target), 0.01, 0.5, note)
    if (threshold := ddp.get("divergence_threshold")) is not None:
        knobs["divergenceThreshold"] = _within("divergence_threshold", float(threshold), 1e-6, 10.0, note)
    if (spread := ddp.get("max_batch_diff")) is not None:
        knobs["maxBatchDiff"] = _within("max_batch_diff", spread, 0, MAX_BATCHES, note)
    if ratios := ddp.get("partition_ratios"):
        if all(0 < ratio <= 1 for ratio in ratios) and 0.999 < sum(ratios) < 1.001 and len(ratios) <= 256:
            knobs["partitionRatios"] = [float(ratio) for ratio in ratios]
            if len(ratios) != ranks:
                note(f"there are {len(ratios)} partition_ratios and {ranks} ranks; they are not used unless both agree")
        else:
            note("partition_ratios were left out: they must be above 0, sum to 1, and be at most 256")
    return knobs


def _within(key: str, value: Any, low: Any, high: Any, note: Callable[[str], None]) -> Any:
    kept = min(max(value, low), high)
    if kept != value:
        note(f"{key} {value} is outside {low} to {high}; it is {kept} now")
    return kept
