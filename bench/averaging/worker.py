"""One of the ranks that measure, over Gloo on loopback or over NCCL between the devices of this machine."""

import time
from collections.abc import Callable
from datetime import timedelta
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroupGloo
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # as in torch's own documentation

from bench.averaging.shapes import many, model, resnet20
from fdl_trainer import tail
from fdl_trainer.averaging import Averaging, ModelState, Share
from fdl_trainer.averaging.live import views
from fdl_trainer.tail import RankTail

LIMIT = timedelta(seconds=120)
SHAPES = {"59 tensors": resnet20, "1,000 tensors": many}
MAX_SINGLY = 100
"""Tensors above which nobody waits for one all-reduce each."""
SHARES = (Share(7, 448), Share(16, 1024))


class Rank:
    """A rank's group, and how it measures."""

    def __init__(self, rank: int, ranks: int, port: int, *, nccl: bool) -> None:
        self.rank, self.ranks = rank, ranks
        self.device = torch.device("cuda", rank) if nccl else torch.device("cpu")
        store = TCPStore("127.0.0.1", port, ranks, rank == 0, LIMIT)
        self.group: Any
        if nccl:
            from torch._C._distributed_c10d import ProcessGroupNCCL  # noqa: PLC0415  # builds without NCCL lack it

            torch.cuda.set_device(self.device)
            self.group = ProcessGroupNCCL(store, rank, ranks, ProcessGroupNCCL.Options())
            return
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # torch's stubs lack it
        options._timeout = LIMIT
        options._threads = 1
        options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        self.group = ProcessGroupGloo(store, rank, ranks, options)

    def all_reduce(self, buffer: Tensor) -> None:
        """Sum over all ranks, in place."""
        self.group.allreduce([buffer]).wait()

    def wait(self) -> None:
        """Until the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def timed(self, work: Callable[[], None]) -> float:
        """Milliseconds of some work that all ranks begin together."""
        self.all_reduce(torch.zeros(1, device=self.device))
        self.wait()
        started = time.perf_counter()
        work()
        self.wait()
        return (time.perf_counter() - started) * 1000.0


class Case:
    """All that is measured for one model."""

    def __init__(self, rank: Rank, shapes: list[tuple[int, ...]]) -> None:
        self.rank = rank
        self.live = [parameter.detach() for parameter in model(shapes).parameters()]
        self.flat = torch.zeros(sum(tensor.numel() for tensor in self.live), device=rank.device)
        self.other = torch.randn_like(self.flat)
        self.narrow = torch.zeros(self.flat.numel(), dtype=torch.bfloat16, device=rank.device)
        self.small = torch.zeros(rank.ranks * tail.TAIL_SLOTS, device=rank.device)
        self.states = {
            name: self._state(shapes, narrow) for name, narrow in (("window", False), ("window, bf16", True))
        }
        self.members = [f"rank-{number}" for number in range(rank.ranks)]

    def _state(self, shapes: list[tuple[int, ...]], narrow: bool) -> ModelState:
        state = ModelState(model(shapes).to(self.rank.device), Averaging(bf16_wire=narrow))
        state.capture()
        return state

    def work(self) -> dict[str, Callable[[], None]]:
        """What is timed, by name."""
        flat, other, by = self.flat, self.other, torch.tensor(3.0, device=self.rank.device)
        wires = {
            name: state.new_wire(self.rank.rank, self.rank.ranks, self.rank.ranks * tail.TAIL_SLOTS)
            for name, state in self.states.items()
        }

        def window(name: str) -> None:
            state, wire, share = self.states[name], wires[name], SHARES[self.rank.rank % 2]
            own = RankTail(self.members[self.rank.rank], share.batches, share.samples, divergence=state.divergence())
            state.pack(wire, share)
            values = tail.encode(own, self.rank.rank, self.rank.ranks)
            wire.write_tail(values, values)
            wire.reduce(self.rank.all_reduce)
            reduced = tail.decode(wire.read_tail(), self.members)
            state.commit(wire, [Share(rank.batches, rank.samples) for rank in reduced.ranks])

        def each() -> None:
            for part in views(flat, self.live):
                self.rank.all_reduce(part)

        def two() -> None:
            self.rank.all_reduce(self.narrow)
            self.rank.all_reduce(self.small)

        works: dict[str, Callable[[], None]] = {
            "all-reduce": lambda: self.rank.all_reduce(flat),
            "pass: copy in": lambda: _do(flat.copy_(other)),
            "pass: scale": lambda: _do(flat.mul_(1.0)),
            "pass: finite": lambda: _do(torch.isfinite(flat.sum())),
            "pass: divide": lambda: _do(torch.div(flat, by, out=other)),
            "pass: difference": lambda: _do(other.sub_(flat)),
            "pass: norm": lambda: _do(torch.linalg.vector_norm(flat)),
            "pass: norm of difference": lambda: _do(torch.linalg.vector_norm(other)),
            "pass: copy out": lambda: _do(other.copy_(flat)),
            "window": lambda: window("window"),
            "window, bf16": lambda: window("window, bf16"),
            "all-reduce, bf16": lambda: self.rank.all_reduce(self.narrow),
            "all-reduce, bf16 and fp32 tail": two,
        }
        if len(self.live) <= MAX_SINGLY:
            works["all-reduce, tensor by tensor"] = each
        return works


def _do(_: Tensor) -> None:
    """A result that nobody needs."""


def measure(number: int, ranks: int, port: int, rounds: int, nccl: bool) -> dict[str, dict[str, float]]:
    """Medians in milliseconds by model and work. The works take turns, so that the machine's moods hit all alike."""
    torch.set_num_threads(1)
    rank = Rank(number, ranks, port, nccl=nccl)
    result = {}
    for name, shapes in SHAPES.items():
        works = Case(rank, shapes()).work()
        times: dict[str, list[float]] = {work: [] for work in works}
        for turn in range(rounds + 2):
            order = list(works) if turn % 2 == 0 else list(works)[::-1]
            for work in order:
                spent = rank.timed(works[work])
                if turn >= 2:
                    times[work].append(spent)
        result[name] = {work: median(values) for work, values in times.items()}
    return result
