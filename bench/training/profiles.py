"""What is measured in which profile, and how long it takes. Pure."""

from dataclasses import dataclass, replace

from bench.averaging.shapes import by_size, by_tensors
from bench.averaging.worker import Wiring
from bench.training.catalog import BY_NAME, METHODS
from bench.training.measure import Timing
from bench.training.payload import Sweep

OVERHEAD = 1.5
"""Seconds of a slice besides its warm-up and its measured time; fdl's need ``FDL_OVERHEAD``, for they start more."""
FDL_OVERHEAD = 3.5


@dataclass(frozen=True, slots=True)
class Scenario:
    """A cohort with a workload, and the methods that are compared in it.

    Attributes:
        cohort: a key of :data:`bench.training.cohorts.COHORTS`.
        workload: a key of :data:`bench.training.workloads.WORKLOADS`.
        methods: names; solo is always among them.
        every: it is measured in every n-th round.
        longer: factor of the measured time.
    """

    cohort: str
    workload: str
    methods: tuple[str, ...]
    every: int = 1
    longer: float = 1.0

    @property
    def name(self) -> str:
        """As it is printed."""
        return f"{self.cohort}, {self.workload}"

    def seconds(self, timing: Timing, rounds: int) -> float:
        """Estimated time of the rounds."""
        total = 0.0
        for method in (BY_NAME[name] for name in self.methods):
            each = timing.warm_up + max(timing.measured * self.longer, method.least)
            times = sum(1 for number in range(0, rounds, self.every) if number % method.every == 0)
            total += times * (each + (FDL_OVERHEAD if method.kind == "fdl" else OVERHEAD))
        return total

    def timing(self, timing: Timing) -> Timing:
        """Of its slices."""
        return replace(timing, measured=timing.measured * self.longer)


@dataclass(frozen=True, slots=True)
class Profile:
    """Rounds of scenarios.

    Attributes:
        name: as on the command line.
        rounds: at most.
        timing: of a slice.
        budget: seconds after which no round begins; every scenario then has the same share of its rounds.
        scenarios: in every round, in an order that changes.
        sweeps: models whose averages are timed after the rounds.
    """

    name: str
    rounds: int
    timing: Timing
    budget: float
    scenarios: tuple[Scenario, ...]
    sweeps: tuple[Sweep, ...]

    def seconds(self) -> float:
        """Estimated time of all rounds."""
        return sum(scenario.seconds(self.timing, self.rounds) for scenario in self.scenarios)


_MILLION = 1_000_000
_SIZES = (_MILLION, 3 * _MILLION, 10 * _MILLION, 30 * _MILLION)
_GPU_SIZES = (*_SIZES, 100 * _MILLION, 300 * _MILLION, 1000 * _MILLION)
"""Numbers of parameters. A processor's memory bus is the limit on CPUs: beyond some ten millions the cost is linear."""
_CPU_SWEEP = (Sweep(Wiring.GLOO, (*by_tensors(20), *by_size(_SIZES, 10))),)
_BASE = ("solo", "DDP", "DDP proportional", "PostLocalSGD")
_FDL = ("fdl cpu-cadence", "fdl cpu-async")
_ALL_PEERS = ("solo", "fastest alone", "DDP", "DDP proportional", "PostLocalSGD", "torchft LocalSGD", "torchft DiLoCo")
_ABLATIONS = tuple(method.name for method in METHODS if method.family == "ablation")

QUICK = Profile(
    "quick",
    3,
    Timing(1.5, 2.5),
    300.0,
    (
        Scenario("1:2.3", "conv", ("solo", "fastest alone", "DDP", "DDP proportional", "PostLocalSGD", *_FDL)),
        Scenario("1:1", "conv", ("solo", "DDP", *_FDL)),
    ),
    (Sweep(Wiring.GLOO, by_size(_SIZES[:3], 5)),),
)
DEFAULT = Profile(
    "default",
    6,
    Timing(2.0, 4.0),
    1860.0,
    (
        Scenario("1:2.3", "conv", (*_ALL_PEERS, "hivemind", *_FDL)),
        Scenario("1:1:4", "conv", (*_ALL_PEERS, *_FDL)),
        Scenario("1:1", "conv", ("solo", "DDP", *_FDL)),
        Scenario("1:4", "conv", (*_BASE, *_FDL), every=3),
        Scenario("1:2.3 swap", "conv", ("solo", "DDP", "DDP proportional", *_FDL), every=2, longer=2.0),
        Scenario("1:2.3 jitter", "conv", (*_BASE, *_FDL), every=3),
        Scenario("1:2.3 quota", "conv", ("solo", "DDP", "DDP proportional", "fdl cpu-cadence"), every=3),
        Scenario("1:2.3", "mlp", ("solo", "DDP", "DDP proportional", "fdl cpu-cadence"), every=3),
        Scenario("1:2.3", "gpt", ("solo", "DDP", "DDP proportional", "fdl cpu-cadence"), every=3),
        Scenario(
            "1:2.3",
            "resnet20",
            ("solo", "DDP", "DDP proportional", "fdl cpu-cadence", "fdl tensor by tensor"),
            every=2,
        ),
    ),
    _CPU_SWEEP,
)
ABLATIONS = Profile(
    "ablations",
    6,
    Timing(2.0, 4.0),
    840.0,
    (
        Scenario("1:2.3", "conv", ("solo", "DDP", *_FDL, "fdl cpu-sync", *_ABLATIONS)),
        Scenario("1:2.3", "resnet20", ("solo", "DDP", "fdl cpu-cadence", "fdl tensor by tensor")),
    ),
    (),
)
FULL = Profile(
    "full",
    12,
    Timing(3.0, 6.0),
    5 * 3600.0,
    (
        Scenario("1:2.3", "conv", (*_ALL_PEERS, "hivemind", *_FDL, "fdl cpu-sync", *_ABLATIONS)),
        Scenario("1:1:4", "conv", (*_ALL_PEERS, *_FDL, "fdl cpu-sync")),
        Scenario("1:1", "conv", (*_ALL_PEERS, *_FDL, "fdl cpu-sync")),
        Scenario("1:4", "conv", (*_ALL_PEERS, *_FDL)),
        Scenario("1:2.3 swap", "conv", (*_ALL_PEERS, *_FDL), longer=2.0),
        Scenario("1:2.3 jitter", "conv", (*_ALL_PEERS, *_FDL)),
        Scenario("1:2.3 quota", "conv", (*_ALL_PEERS, *_FDL)),
        Scenario("1:1:4 quota", "conv", (*_ALL_PEERS, *_FDL)),
        Scenario("1:2.3", "mlp", (*_ALL_PEERS, *_FDL)),
        Scenario("1:2.3", "gpt", (*_ALL_PEERS, *_FDL)),
        Scenario("1:2.3", "resnet20", (*_ALL_PEERS, *_FDL, "fdl tensor by tensor")),
        Scenario("1:1:4", "resnet20", (*_ALL_PEERS, *_FDL), every=2),
    ),
    _CPU_SWEEP,
)
_GPU_FDL = ("fdl nccl-cadence", "fdl nccl-sync", "fdl cpu-cadence", "fdl cpu-async")
GPU = Profile(
    "gpu",
    6,
    Timing(3.0, 4.0),
    900.0,
    (
        Scenario("1:1", "gpt-10m", ("solo", "DDP", *_GPU_FDL)),
        Scenario("1:2.3", "gpt-10m", ("solo", "DDP", "DDP proportional", *_GPU_FDL)),
        Scenario("1:1", "resnet20", ("solo", "DDP", *_GPU_FDL), every=3),
        Scenario("1:2.3", "resnet20", ("solo", "DDP", "DDP proportional", *_GPU_FDL), every=3),
    ),
    (
        Sweep(Wiring.NCCL, (*by_tensors(20), *by_size(_GPU_SIZES, 10))),
        Sweep(Wiring.STAGED, by_size(_GPU_SIZES[:5], 5)),
    ),
)
PROFILES = {profile.name: profile for profile in (QUICK, DEFAULT, ABLATIONS, FULL, GPU)}
