"""Static batch sizes for DDP whose steps take equal time on all ranks. Pure."""

from collections.abc import Sequence

SMALLEST = 2
"""BatchNorm needs two samples."""


def split(total: int, weights: Sequence[float]) -> list[int]:
    """A total in whole parts proportional to weights, each at least :data:`SMALLEST`; largest remainders get the rest.

    Raises:
        ValueError: the total is too small for so many parts, or a weight is not positive.
    """
    if total < SMALLEST * len(weights) or min(weights) <= 0.0:
        raise ValueError(f"{total} samples cannot be split by {list(weights)}")
    exact = [total * weight / sum(weights) for weight in weights]
    parts = [max(SMALLEST, int(share)) for share in exact]
    while sum(parts) < total:
        number = max(range(len(parts)), key=lambda place: exact[place] - parts[place])
        parts[number] += 1
    while sum(parts) > total:
        number = max((place for place in range(len(parts)) if parts[place] > SMALLEST), key=lambda place: parts[place])
        parts[number] -= 1
    return parts


def rebalanced(sizes: Sequence[int], rates: Sequence[float]) -> list[int]:
    """Sizes of the same sum whose steps take equal time, judged by samples a second at the present sizes."""
    return split(sum(sizes), rates)
