"""What a person knows of the ranks' speeds before they are measured: ``elche.partitionRatios``.

Share i belongs to rank i of the membership epoch. In sync modes, where speed changes nothing, the shares are fixed; in
the other modes they only seed the first windows, until speeds are measured. Where their number is not that of the
ranks (a rank died, another joined), nobody can tell whose is whose, and they are left out.
"""

from collections.abc import Sequence

LEAST_SHARE_BATCHES = 8
"""Most batches a window of the rank with the smallest fixed share."""
GOOD_ENOUGH = 0.02
"""Relative error of a share that whole batches may make."""
RATIO_CAP = 64.0
"""How many times the smallest share, and how many times the anchor, a quota may be."""


def usable(ratios: Sequence[float] | None, ranks: int) -> Sequence[float] | None:
    """The ratios if there is one above zero for each rank, else None."""
    if not ratios or len(ratios) != ranks or min(ratios) <= 0.0:
        return None
    return ratios


def whole_batches(ratios: Sequence[float], smallest: int) -> list[int]:
    """Batches in proportion to ratios above zero, where the smallest ratio gets ``smallest``."""
    least = min(ratios)
    return [max(1, int(smallest * min(ratio / least, RATIO_CAP) + 0.5)) for ratio in ratios]


def fixed_shares(ratios: Sequence[float]) -> list[int]:
    """Batches a window with shares as near to the ratios as whole batches allow, in windows as short as possible.

    The smallest share gets 1, 2, ... :data:`LEAST_SHARE_BATCHES` batches, and the first number at which every share is
    right to 2 % is taken; failing that, the best one. So 0.7 and 0.3 become 7 and 3 batches, 0.8 and 0.2 4 and 1.
    """
    tried = [whole_batches(ratios, smallest) for smallest in range(1, LEAST_SHARE_BATCHES + 1)]
    good = (batches for batches in tried if _error(ratios, batches) <= GOOD_ENOUGH)
    return next(good, None) or min(tried, key=lambda batches: _error(ratios, batches))


def _error(ratios: Sequence[float], batches: Sequence[int]) -> float:
    """Largest relative error of a share."""
    per_batch, per_ratio = 1.0 / sum(batches), 1.0 / _total(ratios)
    pairs = zip(ratios, batches, strict=True)
    return max(abs(count * per_batch - ratio * per_ratio) / (ratio * per_ratio) for ratio, count in pairs)


def _total(ratios: Sequence[float]) -> float:
    total = 0.0
    for ratio in ratios:
        total += ratio
    return total
