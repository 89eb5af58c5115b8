"""A run's settings of the average."""

from dataclasses import dataclass, field
from typing import Final

from fdl_api.run import ElcheSpec
from fdl_trainer.averaging.outer import Outer, OuterStep
from fdl_trainer.averaging.weighing import Weighing, Weights

_DEFAULTS: Final = {Outer.NONE: (1.0, 0.0), Outer.SLOWMO: (1.0, 0.5), Outer.NESTEROV: (0.7, 0.9)}
"""Learning rate and momentum: within SlowMo's tried range (0.4 to 0.8), and those of DiLoCo."""


@dataclass(frozen=True)
class Averaging:
    """How a run averages; the same on all ranks.

    Args:
        weighing: how much each rank counts.
        outer: a step on top of the average.
        bf16_wire: send the parameters' way from the last commit as bf16. Each number then has a relative error of at
            most 2^-9 when it is written and again with each addition of another rank's, of that way and not of the
            parameter.
        gradients: average gradients, and step with their mean (:mod:`fdl_trainer.averaging.gradients`).
    """

    weighing: Weighing = field(default_factory=Weighing)
    outer: OuterStep = field(default_factory=OuterStep)
    bf16_wire: bool = False
    gradients: bool = False

    @classmethod
    def of(cls, spec: ElcheSpec) -> "Averaging":
        """The settings in a run's spec."""
        kind = Outer(spec.outer.optimizer)
        learning_rate, momentum = _DEFAULTS[kind]
        if spec.outer.learning_rate is not None:
            learning_rate = spec.outer.learning_rate
        if spec.outer.momentum is not None:
            momentum = spec.outer.momentum
        return cls(
            Weighing(Weights(spec.weights), spec.gamma),
            OuterStep(kind, learning_rate, momentum),
            spec.bf16_wire,
            gradients=spec.average == "gradients",
        )

    @property
    def of_deltas(self) -> bool:
        """Whether ranks send how far they went from the last commit, instead of where they are."""
        return not self.gradients and (self.bf16_wire or self.weighing.of_deltas)
