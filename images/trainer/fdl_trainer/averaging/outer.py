"""Outer optimizers: one more step on the average, taken by every rank for itself.

The way from the last committed parameters to the average is a gradient in all but name: ``g = theta - average``. An
outer optimizer puts momentum on it, on the flat buffer after the reduce, so that nothing more travels. Its state is
fp32 and part of the committed state: it is in checkpoints and goes to joiners.

* ``slowmo``: ``v <- mu v + g``, ``theta <- theta - lr v`` (Wang et al. 2020, arXiv 1910.00643, without its division by
  the inner learning rate, which would make the state depend on the schedule);
* ``nesterov``: ``v <- mu v + g``, ``theta <- theta - lr (g + mu v)``, the outer step of DiLoCo (Douillard et al. 2023,
  arXiv 2311.08105).

Only additions and multiplications, one at a time: each rounds alike everywhere, and fused ones do not. The number of
ranks enters nowhere: a cohort that grows or shrinks keeps momentum and learning rate as they are.
"""

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

_CHUNK = 1 << 18
"""Elements worked on at a time on a CPU, so that the intermediate values stay in its cache."""


class Outer(StrEnum):
    """Kinds of outer optimizers."""

    NONE = "none"
    SLOWMO = "slowmo"
    NESTEROV = "nesterov"


@dataclass(frozen=True)
class OuterStep:
    """An outer optimizer with its settings.

    Args:
        kind: which one.
        learning_rate: of the outer step; 1 takes the average itself when there is no momentum.
        momentum: 0 is none.
    """

    kind: Outer = Outer.NONE
    learning_rate: float = 1.0
    momentum: float = 0.0

    @property
    def has_state(self) -> bool:
        """Whether there is a momentum buffer."""
        return self.kind is not Outer.NONE

    def apply(self, previous: Tensor, average: Tensor, momentum: Tensor, new_momentum: Tensor) -> None:
        """Turn the average into the new parameters.

        Args:
            previous: the last committed parameters, shape ``[n]``; read.
            average: the average, shape ``[n]``; overwritten with the result.
            momentum: state before, shape ``[n]``; read.
            new_momentum: state after, shape ``[n]``; overwritten.
        """
        if self.kind is Outer.NONE:
            return
        size = average.numel() if average.is_cuda else _CHUNK
        for start in range(0, average.numel(), max(size, 1)):
            part = slice(start, start + size)
            self._apply(previous[part], average[part], momentum[part], new_momentum[part])

    def _apply(self, previous: Tensor, average: Tensor, momentum: Tensor, new_momentum: Tensor) -> None:
        gradient = torch.sub(previous, average, out=average)
        torch.mul(momentum, self.momentum, out=new_momentum).add_(gradient)
        if self.kind is Outer.NESTEROV:
            step = gradient.add_(new_momentum * self.momentum).mul_(self.learning_rate)
        else:
            step = torch.mul(new_momentum, self.learning_rate, out=average)
        torch.sub(previous, step, out=average)
