"""Normalisation layers' running statistics, pooled as if one rank had seen everything.

A rank sends its mean relative to the last committed one, and the variance plus that shifted mean squared. Without the
shift, ``E[v + m^2] - m^2`` cancels in fp32 (a mean of 300 with a variance of 1e-3 gives zero or less).
"""

from torch import Tensor

MEAN, VARIANCE = "running_mean", "running_var"


def partner(name: str) -> str | None:
    """The name of the variance that belongs to a mean, or None if the name is not that of a mean."""
    prefix, _, last = name.rpartition(".")
    return f"{prefix}.{VARIANCE}".lstrip(".") if last == MEAN else None


def shift(mean: Tensor, variance: Tensor, base: Tensor) -> None:
    """Turn statistics into first and second moments about ``base``, in place. All of shape ``[layers' channels]``."""
    mean.sub_(base)
    variance.add_(mean * mean)


def unshift(mean: Tensor, variance: Tensor, base: Tensor) -> None:
    """Inverse of :func:`shift` for averaged moments, in place."""
    variance.sub_(mean * mean).clamp_(min=0.0)
    mean.add_(base)
