"""One of the ranks that measure, over Gloo on loopback or over NCCL between the devices of this machine."""

import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from enum import StrEnum
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroupGloo
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # as in torch's own documentation

from bench.averaging import profile
from bench.averaging.shapes import Load, Shape, model
from bench.averaging.window import Window
from fdl_trainer import tail
from fdl_trainer.averaging import Averaging, ModelState
from fdl_trainer.averaging.live import views
from fdl_trainer.groups import Group, Reaper
from fdl_trainer.groups.gloo import GlooGroup
from fdl_trainer.groups.nccl import NcclGroup, apply_settings

LIMIT = timedelta(seconds=120)
CPU = torch.device("cpu")
WARM_UP = 2
"""Turns that are not counted."""
END = "until the device is done"
COPIES = 10
"""Times that each way of copying is measured."""


class Wiring(StrEnum):
    """Where the models and the flat buffers are, and what joins the ranks."""

    GLOO = "gloo"
    """All on processors."""
    NCCL = "nccl"
    """All on devices, one a rank."""
    STAGED = "gloo from devices"
    """Models on devices, buffers in pinned host memory: fdl's CPU modes with devices."""


class Rank:
    """A rank's group, and how it measures."""

    def __init__(self, rank: int, ranks: int, port: int, wiring: Wiring) -> None:
        self.rank, self.ranks = rank, ranks
        self.home = CPU if wiring is Wiring.GLOO else torch.device("cuda", rank)
        self.device = self.home if wiring is Wiring.NCCL else CPU
        store = TCPStore("127.0.0.1", port, ranks, rank == 0, LIMIT)
        self.backend: Any
        self.group: Group
        if self.home.type == "cuda":
            torch.cuda.set_device(self.home)
        if wiring is Wiring.NCCL:
            from torch._C._distributed_c10d import ProcessGroupNCCL  # noqa: PLC0415  # builds without NCCL lack it

            apply_settings(os.environ, "127.0.0.1")
            self.backend = ProcessGroupNCCL(store, rank, ranks, ProcessGroupNCCL.Options())
            self.group = NcclGroup(self.backend, rank, ranks, self.device, Reaper())
            return
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # torch's stubs lack it
        options._timeout = LIMIT
        options._threads = 1
        options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        self.backend = ProcessGroupGloo(store, rank, ranks, options)
        self.group = GlooGroup(self.backend, rank, ranks, Reaper())

    def all_reduce(self, buffer: Tensor) -> None:
        """Sum over all ranks, in place, with nothing of the trainer's around it."""
        self.backend.allreduce([buffer]).wait()

    def wait(self) -> None:
        """Until the device is done."""
        if self.home.type == "cuda":
            torch.cuda.synchronize()

    def together(self) -> None:
        """Until all ranks are here and their devices are done."""
        self.all_reduce(torch.zeros(1, device=self.device))
        self.wait()

    def timed(self, work: Callable[[], None]) -> float:
        """Milliseconds of some work that all ranks begin together."""
        self.together()
        started = time.perf_counter()
        work()
        self.wait()
        return (time.perf_counter() - started) * 1000.0


class Case:
    """All that is measured for one model."""

    def __init__(self, rank: Rank, load: Load) -> None:
        self.rank, self.load = rank, load
        pinned = rank.home.type != rank.device.type
        count = load.parameters
        self.flat = torch.zeros(count, device=rank.device, pin_memory=pinned)
        self.other = torch.randn(count, device=rank.device)
        self.live = self.other if not pinned else torch.randn(count, device=rank.home)
        self.tensors = views(self.flat, [torch.empty(shape, device="meta") for shape in load.shapes])
        self.small = torch.zeros(rank.ranks * tail.TAIL_SLOTS, device=rank.device)
        self.window = self._window(load.shapes, narrow=False)
        self.narrow_window = self._window(load.shapes, narrow=True) if load.narrow else None
        self.steps: dict[str, list[float]] = {name: [] for name in (*self.window.steps, END)}
        self.narrow = torch.zeros(0)
        if load.narrow:
            self.narrow = torch.zeros(count, dtype=torch.bfloat16, device=rank.device, pin_memory=pinned)

    def _window(self, shapes: tuple[Shape, ...], *, narrow: bool) -> Window:
        state = ModelState(model(shapes, self.rank.home), Averaging(bf16_wire=narrow), self.rank.device)
        state.capture()
        return Window(state, self.rank.group)

    def work(self) -> dict[str, Callable[[], None]]:
        """What is timed, by name."""
        flat, other, by = self.flat, self.other, torch.tensor(3.0, device=self.rank.device)
        narrow = self.narrow_window

        def window() -> None:
            spent = self.window.run()
            started = time.perf_counter()
            self.rank.wait()
            spent[END] = (time.perf_counter() - started) * 1000.0
            for name, milliseconds in spent.items():
                self.steps[name].append(milliseconds)

        def each() -> None:
            for part in self.tensors:
                self.rank.all_reduce(part)

        def two() -> None:
            self.rank.all_reduce(self.narrow)
            self.rank.all_reduce(self.small)

        works: dict[str, Callable[[], None]] = {
            "all-reduce": lambda: self.rank.all_reduce(flat),
            "pass: copy in": lambda: _do(flat.copy_(self.live)),
            "pass: scale": lambda: _do(flat.mul_(1.0)),
            "pass: finite": lambda: _do(torch.isfinite(flat.sum())),
            "pass: divide": lambda: _do(torch.div(flat, by, out=other)),
            "pass: difference": lambda: _do(other.sub_(flat)),
            "pass: norm": lambda: _do(torch.linalg.vector_norm(flat)),
            "pass: norm of difference": lambda: _do(torch.linalg.vector_norm(other)),
            "pass: copy out": lambda: _do(self.live.copy_(flat)),
            "window": window,
        }
        if narrow is not None:
            works["window, bf16"] = lambda: _do(narrow.run())
            works["all-reduce, bf16"] = lambda: self.rank.all_reduce(self.narrow)
            works["all-reduce, bf16 and fp32 tail"] = two
        if self.load.singly:
            works["all-reduce, tensor by tensor"] = each
        return works


def _do(_: object) -> None:
    """A result that nobody needs."""


def measure(
    number: int, ranks: int, port: int, wiring: Wiring, loads: Sequence[Load]
) -> dict[str, dict[str, list[float]]]:
    """Milliseconds of each turn, by model and work; those that begin with "step: " are parts of the window.

    The works take turns, so that the machine's moods hit all alike.
    """
    torch.set_num_threads(1)
    rank = Rank(number, ranks, port, wiring)
    return {load.name: _times(rank, Case(rank, load)) for load in loads}


def explain(
    number: int, ranks: int, port: int, wiring: Wiring, loads: Sequence[Load]
) -> dict[str, tuple[dict[str, list[float]], dict[str, Any]]]:
    """The same, each with a profile."""
    torch.set_num_threads(1)
    rank = Rank(number, ranks, port, wiring)
    result = {}
    for load in loads:
        case = Case(rank, load)
        times = _times(rank, case)
        result[load.name] = (times, _profile(rank, case))
    return result


def _times(rank: Rank, case: Case) -> dict[str, list[float]]:
    works = case.work()
    times: dict[str, list[float]] = {work: [] for work in works}
    for turn in range(case.load.turns + WARM_UP):
        order = list(works) if turn % 2 == 0 else list(works)[::-1]
        for work in order:
            spent = rank.timed(works[work])
            if turn >= WARM_UP:
                times[work].append(spent)
    return {**times, **{f"step: {step}": spent[WARM_UP:] for step, spent in case.steps.items()}}


def _profile(rank: Rank, case: Case) -> dict[str, Any]:
    """What the steps are made of, and what ways of copying cost, with and without waiting for the device."""
    result = profile.watch(case.window, rank.together)
    tensors = [torch.randn(shape, device=rank.home) for shape in case.load.shapes]
    ways = profile.ways(tensors, torch.zeros(case.load.parameters, device=rank.home))
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(COPIES):
        for way, work in ways.items():
            started = time.perf_counter()
            work()
            kept = time.perf_counter()
            rank.wait()
            times[way].append(((kept - started) * 1000.0, (time.perf_counter() - started) * 1000.0))
    result["ways"] = {
        way: {"hostMs": median(host for host, _ in spent), "ms": median(whole for _, whole in spent)}
        for way, spent in times.items()
    }
    rank.together()
    return result
