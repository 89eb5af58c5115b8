"""What is believed of the ranks' speeds before they are measured: ``elche.partitionRatios``, or their devices.

Share i of the ratios belongs to seat i of the run: its cohorts in the order of the spec, their members by ordinal, the
members' devices. So a successor gets its predecessor's share, whenever it arrives. In sync modes, where speed changes
nothing, the shares are fixed; in the other modes they only seed the first windows, until speeds are measured. Where the
ratios are not as many as the seats, nobody can tell whose is whose, and they are left out.

Without ratios that fit, the first windows of a cadence follow the devices (:mod:`fdl_trainer.elche.prior`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fdl_api.spec_policy import RATIO_CAP
from fdl_trainer.elche import prior
from fdl_trainer.elche.knobs import ElcheKnobs, Policy
from fdl_trainer.elche.prior import Hardware

FIRST_QUOTA = 2
"""Batches of a rank whose speed is not known: few, since everybody waits for it."""
LEAST_SHARE_BATCHES = 8
"""Most batches a window of the rank with the smallest fixed share."""
GOOD_ENOUGH = 0.02
"""Relative error of a share that whole batches may make."""


@dataclass(frozen=True)
class Seated:
    """What the message of an epoch says of a rank.

    Args:
        seat: number of its seat in the run, from 0; -1 when it has none (it is one more than the spec wanted).
        device: what it trains on; None when that is not known.
    """

    seat: int = -1
    device: Hardware | None = None


@dataclass(frozen=True)
class Seating:
    """What the message of an epoch says of its ranks.

    Args:
        seats: seats of the run; 0 when nobody says.
        ranks: by UID.
    """

    seats: int = 0
    ranks: Mapping[str, Seated] = field(default_factory=dict)


NOWHERE = Seating()


def shares(members: Sequence[str], seating: Seating, spec: ElcheKnobs, policy: Policy) -> dict[str, float]:
    """The share of each member in proportion to what is believed of its speed; empty when nothing is.

    Args:
        members: UIDs of an epoch's ranks, in order.
        seating: what the epoch's message says of them.
        spec: the run's knobs.
        policy: in sync modes only the user's word counts.
    """
    if ratios := _by_seat(spec.partition_ratios or (), members, seating):
        return ratios
    if policy is Policy.SYNC:
        return {}
    largest = prior.LARGEST_RATIO
    if spec.max_batch_diff is not None:
        largest = min(largest, (FIRST_QUOTA + spec.max_batch_diff) / FIRST_QUOTA)
    devices = [seating.ranks[uid].device if uid in seating.ranks else None for uid in members]
    return dict(zip(members, prior.relative_speeds(devices, largest), strict=False))


def _by_seat(ratios: Sequence[float], members: Sequence[str], seating: Seating) -> dict[str, float]:
    """Ratios by member; empty when they are not as many as the seats, or a member has none.

    Where nobody says who sits where (a run of one process, the simulator), members sit in their order.
    """
    seats = [seating.ranks.get(uid, Seated()).seat for uid in members] if seating.seats else list(range(len(members)))
    if len(ratios) != (seating.seats or len(members)) or not all(0 <= seat < len(ratios) for seat in seats):
        return {}
    return {uid: ratios[seat] for uid, seat in zip(members, seats, strict=True)}


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
