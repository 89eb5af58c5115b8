"""How fdl is set in a quality run, and what it is compared with. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fdl_api.run import Mode

RATE = "rate"
"""Key of a job's settings: factor of the task's learning rate."""
GRADIENTS = "gradients"
"""Key of a job's settings: whether gradients are averaged, for which the script leaves steps to the session."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """How the fastest device trains alone.

    Attributes:
        name: as on the command line; unique.
        about: what it shows.
        share: its batch as a share of the task's.
        rate: factor of the task's learning rate.
        wide: the batch is that of all ranks of the cohort together.
    """

    name: str
    about: str
    share: float = 1.0
    rate: float = 1.0
    wide: bool = False

    def batch_size(self, batch: int, ranks: int) -> int:
        """Samples of a batch, at least one.

        Args:
            batch: the task's.
            ranks: of the cohort.
        """
        return max(1, round(batch * self.share * (ranks if self.wide else 1)))


@dataclass(frozen=True, slots=True)
class Setting:
    """What a user of fdl may choose; the samples, the model and the kind of optimizer stay the task's.

    Attributes:
        name: as on the command line; unique.
        about: what it does.
        share: a rank's batch as a share of the task's.
        rate: factor of the task's learning rate.
        knobs: of fdl's ElcheSpec, by field name.
        modes: in which it is allowed.
    """

    name: str
    about: str
    share: float = 1.0
    rate: float = 1.0
    knobs: Mapping[str, Any] = field(default_factory=dict)
    modes: frozenset[str] = frozenset(mode.value for mode in Mode)

    def batch_size(self, batch: int) -> int:
        """Samples of a rank's batch, at least one.

        Args:
            batch: the task's.
        """
        return max(1, round(batch * self.share))


ALONE = "alone"
ALONE_WIDE = "alone wide"

BASELINES = {
    base.name: base
    for base in (
        Baseline(ALONE, "the task's batch and rate, which fdl is judged against"),
        Baseline(
            ALONE_WIDE,
            "the batches of all ranks as one: what is worse there comes from the size of the batch and not from how "
            "fdl averages; any training in parallel with unchanged batches pays it",
            wide=True,
        ),
        Baseline("alone slow", "the task's batch and 0.7 of its rate", rate=0.7),
        Baseline("alone half", "half the batch and half the rate", share=0.5, rate=0.5),
        Baseline("alone quarter", "a quarter of the batch and half the rate", share=0.25, rate=0.5),
    )
}
"""Names have no comma: the command line separates by them."""

_BLOCKING = frozenset(mode.value for mode in Mode if mode is not Mode.CPU_ASYNC)
"""Where optimizers stand still while an average is made, so that their moments can be averaged."""


def _knobs(anchor: int = 0, *, moments: bool = False) -> dict[str, Any]:
    """Knobs of windows of a fixed length (0: fdl chooses), with or without averages of the optimizer's moments."""
    found: dict[str, Any] = {"anchor": anchor, "max_anchor": anchor} if anchor else {}
    return {**found, "average_state_every": 1} if moments else found


def _ladder(name: str, about: str, share: float, rate: float, anchor: int) -> tuple[Setting, Setting]:
    """The same without and with averages of the optimizer's moments."""
    return (
        Setting(name, about, share, rate, _knobs(anchor)),
        Setting(f"{name} moments", f"{about}, moments averaged", share, rate, _knobs(anchor, moments=True), _BLOCKING),
    )


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("as alone", "batch and rate of the device alone on every rank, windows by default"),
        *_ladder("half", "half the batch on every rank, windows by default", 0.5, 1.0, 0),
        *_ladder("half short", "half the batch, anchor 4", 0.5, 1.0, 4),
        *_ladder("half shorter", "half the batch, anchor 2", 0.5, 1.0, 2),
        *_ladder("quarter short", "a quarter of the batch, 0.7 of the rate, anchor 4", 0.25, 0.7, 4),
        *_ladder("quarter shorter", "a quarter of the batch, 0.7 of the rate, anchor 2", 0.25, 0.7, 2),
        Setting(
            "gradients",
            "a third of the batch, one step a window with the mean gradient, anchor 1",
            share=1.0 / 3.0,
            knobs={**_knobs(1), "average": "gradients"},
            modes=_BLOCKING,
        ),
    )
}
"""Names have no comma."""
