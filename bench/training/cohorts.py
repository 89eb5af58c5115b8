"""Cohorts of unequal ranks, and where their ranks run. Pure.

A rank is slow in one of two honest ways, never by sleeping (a sleeping rank leaves its core to the others and overlaps
with communication, which flatters every method):

* extra work: forward and backward passes on a copy of the model that count for nothing; communication and Python run at
  full speed, as with a slower accelerator;
* a CPU quota of its control group with a period of 10 ms, as on a smaller machine: communication is slowed, too.

Fewer cores than ranks: the slowest ranks share the last core, so that each of them has a fraction of it, and the extra
work makes up for the rest of the ratio. The sum of their rates does not depend on which of them waits. Solo rates are
measured with all ranks at work, under the same sharing.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cohort:
    """Ranks and their speeds.

    Attributes:
        name: as it is printed.
        slowness: by rank, how many times slower than a whole core; 1 is a whole core.
        quota: by rank, CPUs of its control group, or () for extra work.
        swaps: the speeds are reversed at half-time.
        jitter: sigma of the lognormal factor of the extra work, whose mean is 1; 0 is none.
    """

    name: str
    slowness: tuple[float, ...]
    quota: tuple[float, ...] = ()
    swaps: bool = False
    jitter: float = 0.0

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.slowness)

    @property
    def unequal(self) -> bool:
        """Whether its ranks differ in speed."""
        return len(set(self.quota or self.slowness)) > 1

    @property
    def lock_step_bound(self) -> float:
        """Efficiency that equal batches in lock step cannot exceed: N r_min / sum of rates."""
        rates = list(self.quota) or [1.0 / factor for factor in self.slowness]
        return len(rates) * min(rates) / sum(rates)


@dataclass(frozen=True, slots=True)
class Place:
    """Where one rank runs and how it is slowed.

    Attributes:
        core: number of its core; None leaves it to the kernel.
        factor: passes per batch, the counted one included, in the first half.
        factor_later: the same after the swap.
        quota: CPUs of its control group; None for no limit.
    """

    core: int | None
    factor: float
    factor_later: float
    quota: float | None = None


def places(cohort: Cohort, cores: Sequence[int]) -> list[Place]:
    """Cores and extra work of each rank.

    Args:
        cohort: the ranks.
        cores: numbers of the cores that may be used, as of ``os.sched_getaffinity``; the fastest rank has the first.

    Raises:
        ValueError: the cohort does not fit: ranks that share a core would have to be faster than their share of it.
    """
    order = sorted(range(cohort.ranks), key=lambda rank: cohort.slowness[rank])
    core = {rank: cores[min(place, len(cores) - 1)] for place, rank in enumerate(order)}
    sharing = {rank: sum(1 for other in core.values() if other == core[rank]) for rank in order}
    if cohort.quota:
        return [Place(core[rank], 1.0, 1.0, cohort.quota[rank]) for rank in range(cohort.ranks)]
    if cohort.swaps and max(sharing.values()) > 1:
        raise ValueError(f"cohort {cohort.name}: ranks that share a core cannot swap speeds; use {cohort.ranks} cores")
    result = []
    for rank in range(cohort.ranks):
        factor = cohort.slowness[rank] / sharing[rank]
        if factor < 1.0:
            raise ValueError(
                f"cohort {cohort.name}: rank {rank} would have to be {1 / factor:.2g} times as fast as its share of "
                f"core {core[rank]}; use {cohort.ranks} cores"
            )
        later = cohort.slowness[-1 - rank] if cohort.swaps else factor
        result.append(Place(core[rank], factor, later))
    return result


COHORTS: dict[str, Cohort] = {
    cohort.name: cohort
    for cohort in (
        Cohort("1:1", (1.0, 1.0)),
        Cohort("1:2.3", (2.3, 1.0)),
        Cohort("1:4", (4.0, 1.0)),
        Cohort("1:1:4", (4.0, 4.0, 1.0)),
        Cohort("1:2.3 swap", (2.3, 1.0), swaps=True),
        Cohort("1:2.3 jitter", (2.3, 1.0), jitter=0.4),
        Cohort("1:2.3 quota", (2.3, 1.0), quota=(0.4, 0.92)),
        Cohort("1:1:4 quota", (4.0, 4.0, 1.0), quota=(0.22, 0.22, 0.88)),
    )
}
