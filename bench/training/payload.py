"""What an average costs besides compute, by number of parameters and of tensors, beside the rounds of training."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.averaging.processes import run
from bench.averaging.report import floor, medians, ratios
from bench.averaging.shapes import Load
from bench.averaging.worker import Wiring
from bench.training.stats import Interval, bootstrap

SINGLY = "all-reduce, tensor by tensor"
RANKS = 2


@dataclass(frozen=True, slots=True)
class Sweep:
    """Models that are averaged in one way.

    Attributes:
        wiring: where they are, and what joins the ranks.
        loads: the models.
    """

    wiring: Wiring
    loads: tuple[Load, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one model.

    Attributes:
        wiring: how it was averaged.
        model: name.
        parameters: numbers in it.
        tensors: that they are in.
        window_ms: everything of a window but compute, milliseconds.
        all_reduce_ms: one bare all-reduce of all parameters, milliseconds.
        floor_ms: that and the passes over memory, median milliseconds.
        ratio: window over floor, turn by turn.
        singly: one all-reduce for every tensor over one for all, turn by turn; None for very many tensors.
    """

    wiring: str
    model: str
    parameters: int
    tensors: int
    window_ms: Interval
    all_reduce_ms: Interval
    floor_ms: float
    ratio: Interval
    singly: Interval | None

    @property
    def gigabytes_a_second(self) -> float:
        """Payload of the bare all-reduce over its time."""
        return 4e-9 * self.parameters / (self.all_reduce_ms.value / 1000.0)


def measure(sweeps: Sequence[Sweep], say: Callable[[str], None]) -> list[Cost]:
    """Measure all models, one sweep after the other."""
    found: list[Cost] = []
    for sweep in sweeps:
        say(f"averages by {sweep.wiring}: {', '.join(load.name for load in sweep.loads)}")
        times = run(RANKS, sweep.loads, sweep.wiring)
        found += [cost(load, sweep.wiring, times[load.name]) for load in sweep.loads]
    return found


def cost(load: Load, wiring: Wiring, times: Mapping[str, Sequence[float]]) -> Cost:
    """Figures of one model.

    Args:
        load: the model.
        wiring: how it was averaged.
        times: milliseconds of each turn, by work.
    """
    singly = [one / all_ for one, all_ in zip(times.get(SINGLY, ()), times["all-reduce"], strict=False)]
    return Cost(
        wiring=str(wiring),
        model=load.name,
        parameters=load.parameters,
        tensors=len(load.shapes),
        window_ms=bootstrap(times["window"]),
        all_reduce_ms=bootstrap(times["all-reduce"]),
        floor_ms=floor(medians(times)),
        ratio=bootstrap(ratios(times)),
        singly=bootstrap(singly) if singly else None,
    )
