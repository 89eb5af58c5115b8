"""How much each rank's work counts in an average. Pure.

Every rank derives every weight from the batches and samples in the reduced tail, so that the divisor is the sum of
exactly the factors that were multiplied in. With ``theta`` the last committed parameters, ``theta_i`` a rank's own,
``n_i`` its batches and ``s_i`` its samples:

* ``samples``: ``sum(s_i^gamma theta_i) / sum(s_i^gamma)``, the gradient-exact choice for one step each on a common
  shuffled dataset;
* ``batches``: the same with ``n_i``;
* ``uniform``: the plain mean over the ranks that trained;
* ``normalized``: ``theta + tau * mean((theta_i - theta) / n_i)`` with ``tau = sum(n_i) / N`` over the ``N`` ranks that
  trained: FedNova with equal shares of the data (Wang et al. 2020, arXiv 2007.07481, its update rule with
  ``p_i = 1/N`` and ``a_i`` the ones of plain SGD). For ranks that see data of their own, where weighing by work
  would pull the model to the fast ranks' data.

Buffers that are no parameters (BatchNorm's statistics among them) describe data: they always weigh by samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from enum import StrEnum

_STEPS = 64
"""Weights with an exponent are multiples of 1/64, so that their sums are exact in fp32 up to 2^18."""
_DECIMAL = Context(prec=28)


class Weights(StrEnum):
    """What a rank's weight follows from."""

    SAMPLES = "samples"
    BATCHES = "batches"
    UNIFORM = "uniform"
    NORMALIZED = "normalized"


@dataclass(frozen=True)
class Share:
    """What a rank did in a window, as all ranks read it in the tail.

    Args:
        batches: micro-batches.
        samples: samples in them.
    """

    batches: int
    samples: int


@dataclass(frozen=True)
class Weighing:
    """The rule of a run.

    Args:
        weights: what weights follow from.
        gamma: exponent of batches or samples; without effect on the other two.
    """

    weights: Weights = Weights.SAMPLES
    gamma: float = 1.0

    @property
    def of_deltas(self) -> bool:
        """Whether the rule is about the way from the last commit, and not about the parameters themselves."""
        return self.weights is Weights.NORMALIZED

    def factor(self, share: Share) -> float:
        """What a rank multiplies its parameters (or their deltas) with; 0 without work."""
        if share.samples == 0:
            return 0.0
        match self.weights:
            case Weights.SAMPLES:
                return power(share.samples, self.gamma)
            case Weights.BATCHES:
                return power(share.batches, self.gamma)
            case Weights.UNIFORM:
                return 1.0
            case Weights.NORMALIZED:
                return 1.0 / share.batches

    def slot_factor(self, share: Share) -> float:
        """The same for the optimizer's own tensors, which have no way from the last commit; 0 without work."""
        if self.of_deltas:
            return 1.0 if share.samples else 0.0
        return self.factor(share)

    def divisor(self, shares: Sequence[Share]) -> float:
        """What the sum over all ranks is divided by."""
        if self.weights is Weights.NORMALIZED:
            batches = [share.batches for share in shares if share.samples]
            return len(batches) ** 2 / sum(batches)
        return sum(self.factor(share) for share in shares)


def power(count: int, gamma: float) -> float:
    """``count^gamma``, rounded to 1/64 and at least that.

    In decimal arithmetic, whose result is defined to the last digit: the C library's ``pow`` may differ between two
    machines, and then their divisors would.
    """
    if gamma == 1.0:
        return float(count)
    exact = _DECIMAL.power(Decimal(count), Decimal(str(gamma)))
    steps = int((exact * _STEPS).to_integral_value(context=_DECIMAL))
    return max(steps, 1) / _STEPS
