"""Arithmetic on doubles that gives the same bits on every machine.

Ranks plan alike without asking each other, so a plan may use only what IEEE 754 fixes to the last bit: + - * /,
square root, comparison, and integers. The C library's ``log`` and ``pow`` differ between machines in the last bit,
and ``sum`` of floats differs between Python 3.11 and 3.12; these take their place.
"""

import math
from collections.abc import Sequence

LN_2 = 0.6931471805599453
"""Natural logarithm of 2, as the nearest double."""
TERMS = 12
"""Terms of the series of :func:`ln`; the first one left out is below 1e-18."""


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean, rounded once (:func:`math.fsum` is exact); 0 for no values."""
    return math.fsum(values) / len(values) if values else 0.0


def ln(x: float) -> float:
    """Natural logarithm of ``x > 0``, right to about 1e-15.

    ``x = m * 2**e`` with m in [sqrt(1/2), sqrt(2)), and ``ln m = 2 artanh z``, ``z = (m - 1) / (m + 1)``.

    Raises:
        ValueError: if ``x`` is not positive and finite.
    """
    if not (math.isfinite(x) and x > 0.0):
        raise ValueError(f"the logarithm of {x} is not defined; it needs a positive finite number")
    mantissa, exponent = math.frexp(x)
    if mantissa < 0.7071067811865476:
        mantissa, exponent = mantissa * 2.0, exponent - 1
    z = (mantissa - 1.0) / (mantissa + 1.0)
    square, series = z * z, 0.0
    for term in range(TERMS - 1, -1, -1):
        series = series * square + 1.0 / (2 * term + 1)
    return exponent * LN_2 + 2.0 * z * series
