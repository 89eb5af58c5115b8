"""Windows that are one step: equal to one process on all their batches, whatever a rank did or missed."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fdl_api.run import ElcheSpec, Mode
from fdl_trainer import agreed, ledger, plan, tail
from fdl_trainer.averaging import (
    Averaging,
    Gradients,
    ModelChangedError,
    ModelState,
    Share,
    UnsupportedModelError,
    build,
    memory,
)
from fdl_trainer.course import Course
from fdl_trainer.ending import RunEndedError
from fdl_trainer.exchange import Held, decide
from fdl_trainer.plan import PlanSpec
from fdl_trainer.replica import Replica
from fdl_trainer.session import Session
from fdl_trainer.tail import RankTail, Tail

BATCH = 8
Maker = Callable[[Any], torch.optim.Optimizer]
MAKERS: dict[str, Maker] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
}


def net() -> nn.Module:
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def data(seed: int, samples: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(samples, 6, generator=generator), torch.randn(samples, 3, generator=generator)


def backward(model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    model.zero_grad()
    torch.autograd.backward(nn.functional.mse_loss(model(batch[0]), batch[1]))


class Rank:
    """One rank of a run that averages gradients, without processes."""

    def __init__(self, make: Maker, model: nn.Module | None = None, **settings: Any) -> None:
        knobs = ElcheSpec.model_validate({"average": "gradients", **settings})
        spec = PlanSpec.of(Mode.CPU_CADENCE, knobs)
        self.model = net() if model is None else model
        self.optimizer = make(self.model.parameters())
        state = ModelState(self.model, Averaging.of(knobs), optimizer=self.optimizer)
        state.capture()
        control = plan.create(ledger.create(10**6, BATCH, 1, 0), spec)
        self.replica = Replica(state, self.optimizer, control, spec, writable=False)
        self.done = 0
        assert state.gradients is not None
        self.gradients: Gradients = state.gradients

    def train(self, batch: tuple[Tensor, Tensor], *, clip_norm: float | None = None) -> None:
        backward(self.model, batch)
        self.gradients.add(len(batch[0]), clip_norm=clip_norm)
        self.done += 1

    def state(self) -> dict[str, Tensor]:
        """Everything that must be equal on all ranks."""
        found = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                found[f"{name}.{key}"] = value.clone()
        return found


def cohort(count: int, make: Maker = MAKERS["sgd"], **settings: Any) -> list[Rank]:
    ranks = [Rank(make, **settings) for _ in range(count)]
    enter(ranks)
    return ranks


def enter(ranks: Sequence[Rank]) -> None:
    """Plan an epoch of these ranks, as after an exchange in which nobody lacked anything."""
    members = [str(number) for number in range(len(ranks))]
    for rank in ranks:
        rank.replica.control = plan.enter_epoch(rank.replica.control, members, rank.replica.spec)


def sent(ranks: Sequence[Rank]) -> tuple[list[Any], Tail]:
    """Everybody's wire buffer after the reduce, and the tail."""
    wires = []
    for number, rank in enumerate(ranks):
        share = Share(rank.done, rank.done * BATCH)
        wire = rank.replica.pack(rank.replica.new_wire(number, len(ranks)), share)
        own = RankTail(str(number), share.batches, share.samples, digest=agreed.digest(rank.replica.control))
        wire.write_tail(*(tail.encode(each, number, len(ranks)) for each in (own, own.not_finite())))
        wires.append(wire)
    for parts in zip(*(wire.parts for wire in wires), strict=True):
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        for part in parts:
            part.copy_(total)
    return wires, tail.decode(wires[0].read_tail(), [str(number) for number in range(len(ranks))])


def commit(ranks: Sequence[Rank]) -> Tail:
    wires, reduced = sent(ranks)
    for rank, wire in zip(ranks, wires, strict=True):
        assert rank.replica.commit(wire, reduced)
        rank.done = 0
    return reduced


def assert_alike(ranks: Sequence[Rank]) -> None:
    """All ranks hold the same bits: parameters, buffers, the optimizer's state, and what is committed."""
    first = ranks[0].state()
    for rank in ranks[1:]:
        state = rank.state()
        assert state.keys() == first.keys()
        assert all(torch.equal(value, first[key]) for key, value in state.items())
        assert torch.equal(rank.replica.model.committed, ranks[0].replica.model.committed)
    tensors = ranks[0].replica.model.tensors()
    assert all(torch.equal(value, ranks[0].model.state_dict()[key]) for key, value in tensors.items())


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
@pytest.mark.parametrize("clip_norm", [None, 0.05], ids=["free", "clipped"])
def test_ranks_of_unequal_quotas_step_as_one_process_on_all_samples(make: Maker, clip_norm: float | None) -> None:
    ranks = cohort(3, make)
    alone = net()
    optimizer = make(alone.parameters())
    for window in range(4):
        batches = []
        for number, quota in enumerate((2, 1, 0)):
            for turn in range(quota):
                batches.append(data(100 * window + 10 * number + turn, BATCH))
                ranks[number].train(batches[-1], clip_norm=clip_norm)
        before = [parameter.detach().clone() for parameter in ranks[0].model.parameters()]
        assert commit(ranks).samples == 3 * BATCH
        assert not any(map(torch.equal, ranks[0].model.parameters(), before)), "it has stepped"
        backward(alone, (torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])))
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(alone.parameters(), clip_norm)
        optimizer.step()
    assert_alike(ranks)
    for mine, theirs in zip(ranks[2].model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-5, atol=2e-6)
    assert ranks[0].replica.control.window == 4 and ranks[0].replica.divergence == 0.0


def test_nothing_moves_before_the_commit() -> None:
    ranks = cohort(2)
    before = [rank.state() for rank in ranks]
    for rank in ranks:
        rank.train(data(1, BATCH))
        rank.train(data(2, BATCH))
    sent(ranks)
    for rank, held in zip(ranks, before, strict=True):
        state = rank.state()
        assert state.keys() == held.keys() and all(torch.equal(value, held[key]) for key, value in state.items())


def test_a_death_inside_the_reduce_leaves_all_as_it_was_and_the_sums_are_sent_again() -> None:
    ranks, untouched = cohort(3), cohort(2)
    for number, rank in enumerate(ranks):
        rank.train(data(number, BATCH))
    before = ranks[0].state()
    wires, _ = sent(ranks)
    for wire in wires:
        for part in wire.parts:
            part.fill_(float("nan"))  # as the failed reduce left it
    assert all(torch.equal(value, before[key]) for key, value in ranks[0].state().items())
    survivors = ranks[:2]
    enter(survivors)
    commit(survivors)
    for number, rank in enumerate(untouched):
        rank.train(data(number, BATCH))
    commit(untouched)
    assert_alike(survivors)
    assert all(torch.equal(value, untouched[0].state()[key]) for key, value in survivors[0].state().items())


def test_work_that_is_void_is_in_no_step() -> None:
    ranks, fresh = cohort(2), cohort(2)
    for rank in ranks:
        rank.train(data(9, BATCH))
    for rank in ranks:
        rank.replica.model.apply()  # what an epoch does that takes the lease away
        rank.done = 0
    for group in (ranks, fresh):
        group[0].train(data(1, BATCH))
        commit(group)
    assert all(torch.equal(value, fresh[0].state()[key]) for key, value in ranks[0].state().items())


def test_a_rank_whose_gradients_are_not_finite_is_left_out_and_steps_with_the_others() -> None:
    ranks, fresh = cohort(2, MAKERS["adam"]), cohort(1, MAKERS["adam"])
    for group in (ranks, fresh):
        group[0].train(data(1, BATCH))
    x, y = data(2, BATCH)
    ranks[1].train((x * float("nan"), y))
    reduced = commit(ranks)
    assert [rank.samples for rank in reduced.ranks] == [BATCH, 0]
    commit(fresh)
    ranks[1].replica.reset_optimizer()
    assert_alike(ranks)
    for key, value in fresh[0].state().items():
        torch.testing.assert_close(ranks[1].state()[key], value, rtol=1e-6, atol=1e-7)


def test_all_step_at_the_rate_of_a_rank_that_has_trained_and_keep_their_own() -> None:
    """The idle rank's script has not run, and so has its schedule not."""
    ranks = cohort(3)
    alone = net()
    optimizer = MAKERS["sgd"](alone.parameters())
    for window, rate in enumerate((0.3, 1 / 3)):
        for rank in ranks[1:]:
            rank.optimizer.param_groups[0].update(lr=rate, momentum=0.5)
            rank.train(data(window, BATCH), clip_norm=10.0)
        commit(ranks)
        optimizer.param_groups[0].update(lr=rate, momentum=0.5)
        backward(alone, data(window, BATCH))
        optimizer.step()
    assert_alike(ranks)
    for mine, theirs in zip(ranks[0].model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    assert [rank.optimizer.param_groups[0]["lr"] for rank in ranks] == [0.1, 1 / 3, 1 / 3]
    assert ranks[0].optimizer.param_groups[0]["momentum"] == 0.9


def test_what_a_script_does_to_its_parameters_meanwhile_is_undone() -> None:
    ranks, fresh = cohort(2), cohort(2)
    for group in (ranks, fresh):
        group[0].train(data(1, BATCH))
    with torch.no_grad():
        for parameter in ranks[0].model.parameters():
            parameter.clamp_(-0.01, 0.01)
    for group in (ranks, fresh):
        commit(group)
    assert_alike(ranks)
    assert all(torch.equal(value, fresh[0].state()[key]) for key, value in ranks[0].state().items())


def test_rates_in_tensors_and_decays_of_adam_are_lent_too() -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=torch.tensor(0.01), foreach=False)

    ranks = cohort(2, make)
    rate = ranks[1].optimizer.param_groups[0]["lr"]
    ranks[0].optimizer.param_groups[0].update(lr=torch.tensor(0.5), betas=(0.5, 0.75), weight_decay=0.2)
    ranks[0].train(data(1, BATCH))
    commit(ranks)
    assert_alike(ranks)
    group = ranks[1].optimizer.param_groups[0]
    assert group["lr"] is rate and rate == 0.01 and group["betas"] == (0.9, 0.999)


@pytest.mark.parametrize(
    ("make", "moved"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), {"dampening": 0.5}),
        (lambda p: torch.optim.AdamW(p, lr=0.01), {"eps": 0.5, "betas": (0.5, 0.6)}),
        (lambda p: torch.optim.RMSprop(p, lr=0.01), {"alpha": 0.5, "eps": 0.25}),
    ],
    ids=["dampening", "eps", "alpha"],
)
def test_any_number_that_a_script_moves_is_lent(make: Maker, moved: dict[str, Any]) -> None:
    ranks, alone = cohort(2, make), cohort(1, make)
    for group in (ranks, alone):
        for window in range(2):
            group[-1].optimizer.param_groups[0].update(moved)
            group[-1].train(data(window, BATCH))
            commit(group)
    assert_alike(ranks)
    for key, value in alone[0].state().items():
        torch.testing.assert_close(ranks[0].state()[key], value)
    own = ranks[0].optimizer.param_groups[0]
    assert all(own[name] != value for name, value in moved.items()), "each rank's own stay to its script"


def test_books_that_an_optimizer_keeps_among_its_options_go_on() -> None:
    """As learning-rate-free optimizers do: what their step writes is not taken back."""
    ranks = [Rank(lambda p: Counting([{"params": list(p), "k": 0}], lr=0.1)) for _ in range(2)]
    enter(ranks)
    for window in range(3):
        ranks[window % 2].train(data(window, BATCH))
        commit(ranks)
    assert_alike(ranks)
    assert [rank.optimizer.param_groups[0]["k"] for rank in ranks] == [3, 3]


def test_a_parameter_that_no_batch_reached_is_not_stepped() -> None:
    def two_heads() -> nn.Module:
        torch.manual_seed(3)
        return nn.ModuleList([nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(6, 3)])

    ranks = [Rank(MAKERS["sgd"], two_heads()) for _ in range(2)]
    enter(ranks)
    start = two_heads()
    for number, rank in enumerate(ranks):
        x, y = data(number, BATCH)
        assert isinstance(rank.model, nn.ModuleList)
        torch.autograd.backward(nn.functional.mse_loss(rank.model[number](x), y))
        rank.gradients.add(BATCH)
        rank.done = 1
    commit(ranks)
    assert_alike(ranks)
    for number, (name, parameter) in enumerate(ranks[0].model.named_parameters()):
        moved = not torch.equal(parameter, start.get_parameter(name))
        assert moved == (number < 4) and bool(ranks[0].optimizer.state.get(parameter)) == moved


def test_batchnorm_is_pooled_and_counters_are_the_largest() -> None:
    def norm() -> nn.Module:
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))

    ranks = [Rank(MAKERS["sgd"], norm()) for _ in range(3)]
    enter(ranks)
    means = []
    for number, quota in enumerate((2, 1, 0)):
        for turn in range(quota):
            ranks[number].train(data(10 * number + turn, BATCH))
        means.append(ranks[number].model.get_buffer("1.running_mean").clone())
    commit(ranks)
    assert_alike(ranks)
    pooled = ranks[2].model.get_buffer("1.running_mean")
    torch.testing.assert_close(pooled, (2 * means[0] + means[1]) / 3)
    assert ranks[2].model.get_buffer("1.num_batches_tracked") == 2


@pytest.mark.parametrize("wire", [{}, {"bf16Wire": True}], ids=["fp32", "bf16"])
def test_narrow_and_channels_last_parameters_keep_their_form(wire: dict[str, Any]) -> None:
    def images() -> nn.Module:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(4 * 16, 3))
        return model.to(torch.bfloat16).to(memory_format=torch.channels_last)

    ranks = [Rank(MAKERS["sgd"], images(), **wire) for _ in range(2)]
    enter(ranks)
    for number, rank in enumerate(ranks):
        x = torch.randn(BATCH, 2, 6, 6, generator=torch.Generator().manual_seed(number)).bfloat16()
        torch.autograd.backward(rank.model(x).float().pow(2).mean())
        rank.gradients.add(BATCH)
        rank.done = 1
    commit(ranks)
    assert_alike(ranks)
    weight = ranks[0].model.get_parameter("0.weight")
    assert weight.dtype is torch.bfloat16 and weight.is_contiguous(memory_format=torch.channels_last)


def test_a_bf16_wire_rounds_gradients_and_nothing_else() -> None:
    exact, narrow = cohort(2), cohort(2, bf16Wire=True)
    for ranks in (exact, narrow):
        for number, rank in enumerate(ranks):
            rank.train(data(number, BATCH))
        commit(ranks)
    assert_alike(narrow)
    start = net()
    for name, parameter in narrow[0].model.named_parameters():
        way, wanted = (
            ranks[0].model.get_parameter(name).detach() - start.get_parameter(name).detach()
            for ranks in (narrow, exact)
        )
        torch.testing.assert_close(way, wanted, rtol=0.02, atol=float(wanted.abs().max()) * 0.02)
        assert parameter.dtype is torch.float32


def test_steps_that_overflow_in_fp16_are_left_out() -> None:
    rank, other = cohort(1)[0], cohort(1)[0]
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    left_out = []
    for seed, factor in ((1, 1.0), (2, float("inf")), (3, 1.0)):
        rank.model.zero_grad()
        x, y = data(seed, BATCH)
        torch.autograd.backward(scaler.scale(nn.functional.mse_loss(rank.model(x), y) * factor))
        found = rank.gradients.add(BATCH, scaler=scaler)
        assert found is not None
        left_out.append(bool(found > 0))
    assert left_out == [False, True, False] and scaler.get_scale() == 4.0
    rank.done = 2
    for seed in (1, 3):
        other.train(data(seed, BATCH))
    for each in (rank, other):
        commit([each])
    for key, value in other.state().items():
        torch.testing.assert_close(rank.state()[key], value)


def test_an_empty_parameter_has_no_largest_gradient() -> None:
    model = nn.Linear(6, 3)
    model.register_parameter("none", nn.Parameter(torch.zeros(0, 4)))
    rank = Rank(MAKERS["sgd"], model)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    x, y = data(1, BATCH)
    for factor in (1.0, float("inf")):
        model.zero_grad()
        loss = nn.functional.mse_loss(model(x), y) + model.none.sum()
        torch.autograd.backward(scaler.scale(loss * factor))
        found = rank.gradients.add(BATCH, scaler=scaler)
        assert found is not None and bool(found) is (factor > 1.0)


def test_a_step_that_makes_parameters_infinite_is_no_commit() -> None:
    """Adam's eps of 1e-8 is zero in fp16, and zero by zero is not a number."""
    ranks = [Rank(lambda p: torch.optim.Adam(p, foreach=False), nn.Linear(6, 3).half()) for _ in range(2)]
    enter(ranks)
    before = [rank.replica.model.committed.clone() for rank in ranks]
    for rank in ranks:
        for parameter in rank.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        rank.gradients.add(BATCH)
        rank.done = 1
    wires, reduced = sent(ranks)
    for rank, wire, committed in zip(ranks, wires, before, strict=True):
        with pytest.raises(RunEndedError, match=r"parameter weight not finite.*eps") as ended:
            rank.replica.commit(wire, reduced)
        assert ended.value.permanent and rank.replica.control.window == 0
        assert torch.equal(rank.replica.model.committed, committed)


def test_a_script_that_steps_by_itself_is_refused() -> None:
    rank = cohort(1)[0]
    backward(rank.model, data(1, BATCH))
    with pytest.raises(RunEndedError, match=r"called optimizer\.step.*session\.step\(loss\)"):
        rank.optimizer.step()


@pytest.mark.parametrize(("steps", "left"), [(0, False), (2, False), (1, True)])
def test_a_batch_is_stepped_with_once_or_skipped(steps: int, left: bool) -> None:
    session = Session()
    session._taken, session._left = steps, left
    with pytest.raises(RunEndedError, match=rf"a batch {steps} times.*once for each batch, or session\.skip"):
        session._require_one_step()
    for session._taken, session._left in ((1, False), (0, True)):
        session._require_one_step()


def test_sparse_gradients_and_late_groups_are_refused() -> None:
    rank = Rank(MAKERS["sgd"], nn.Embedding(5, 2, sparse=True))
    rank.model(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(RunEndedError, match="sparse=False"):
        rank.gradients.add(2)
    ranks = cohort(2)
    ranks[0].optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    with pytest.raises(ModelChangedError, match="2 parameter groups and had 1"):
        sent(ranks)


def test_a_window_of_skipped_batches_only_counts_and_leaves_nothing_behind() -> None:
    ranks, fresh = cohort(2), cohort(2)
    scaler = torch.amp.GradScaler("cpu")
    x, y = data(1, BATCH)
    torch.autograd.backward(scaler.scale(nn.functional.mse_loss(ranks[0].model(x), y) * float("inf")))
    ranks[0].gradients.add(BATCH, scaler=scaler)
    wires, reduced = sent(ranks)  # its share is of no samples
    skipped = replace(reduced, ranks=(replace(reduced.ranks[0], batches=1, skipped=BATCH), *reduced.ranks[1:]))
    for rank, wire in zip(ranks, wires, strict=True):
        assert rank.replica.commit(wire, skipped)
    assert ranks[0].replica.control.window == 1 and not ranks[0].gradients.sums.any()
    assert all(torch.equal(value, fresh[0].state()[key]) for key, value in ranks[0].state().items())


def test_the_sums_are_counted_in_the_check_of_memory() -> None:
    gradients = Averaging(gradients=True)
    assert memory.demand(gradients) == memory.Demand(16, 0)
    assert memory.demand(gradients, staged=True) == memory.Demand(12, 8)


# --- epochs ----------------------------------------------------------------------------------------------


class Threads:
    """A group of threads: the same sum and the same bytes for all."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=30.0)
        self.buffers: list[Tensor] = [torch.empty(0)] * size

    def of(self, rank: int) -> "ThreadGroup":
        return ThreadGroup(self, rank)


class ThreadGroup:
    def __init__(self, shared: Threads, rank: int) -> None:
        self.rank, self.size, self._shared = rank, len(shared.buffers), shared

    def all_reduce(self, buffer: Tensor, interrupt: Any) -> None:
        shared = self._shared
        shared.buffers[self.rank] = buffer
        shared.barrier.wait()
        total = torch.stack(list(shared.buffers)).sum(0)
        shared.barrier.wait()
        buffer.copy_(total)

    def broadcast(self, buffer: Tensor, root: int, interrupt: Any) -> None:
        shared = self._shared
        shared.buffers[self.rank] = buffer
        shared.barrier.wait()
        given = shared.buffers[root].clone()
        shared.barrier.wait()
        buffer.copy_(given)

    def close(self) -> None:
        """Nothing to close."""


def synchronise(ranks: Sequence[Rank], epoch: int) -> None:
    """The exchange at the start of an epoch, each rank in a thread of its own."""
    group = Threads(len(ranks))
    members = [str(number) for number in range(len(ranks))]
    failures: list[BaseException] = []

    def run(number: int, rank: Rank) -> None:
        try:
            course = Course(str(number))
            rank.replica.synchronise(group.of(number), epoch, members, lambda: False, course)
        except BaseException as error:
            failures.append(error)
            group.barrier.abort()

    threads = [threading.Thread(target=run, args=(number, rank)) for number, rank in enumerate(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert not failures, failures


def test_a_joiner_takes_the_optimizer_too_and_steps_as_the_others() -> None:
    ranks = [Rank(MAKERS["adam"]) for _ in range(2)]
    synchronise(ranks, 1)
    for window in range(3):
        for number, rank in enumerate(ranks):
            rank.train(data(10 * window + number, BATCH))
        commit(ranks)
    torch.manual_seed(99)
    ranks.append(Rank(MAKERS["adam"], nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))))
    synchronise(ranks, 2)
    assert_alike(ranks)
    for window in range(2):
        for number, rank in enumerate(ranks):
            rank.train(data(100 + 10 * window + number, BATCH))
        commit(ranks)
    assert_alike(ranks)
    assert ranks[2].replica.control.window == 5


def test_who_missed_a_commit_takes_its_optimizer_and_keeps_its_own_rate() -> None:
    """A reduce may succeed on one rank and fail on the other, which has not stepped then."""
    ranks = [Rank(MAKERS["sgd"]) for _ in range(2)]
    synchronise(ranks, 1)
    for number, rank in enumerate(ranks):
        rank.optimizer.param_groups[0]["lr"] = 0.1 * (number + 1)
        rank.train(data(number, BATCH))
    commit(ranks)
    for number, rank in enumerate(ranks):
        rank.train(data(10 + number, BATCH))
    wires, reduced = sent(ranks)
    assert ranks[0].replica.commit(wires[0], reduced)
    synchronise(ranks, 2)
    assert_alike(ranks)
    assert ranks[1].replica.control.window == 2 and not ranks[1].gradients.sums.any()
    assert ranks[1].optimizer.param_groups[0]["lr"] == 0.2
    for rank in ranks:
        rank.done = 0
    ranks[1].train(data(20, BATCH))
    commit(ranks)
    assert_alike(ranks)


class Counting(torch.optim.SGD):
    """Counts its steps in its groups and steps by that, as optimizers without a schedule do."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.data.sub_(parameter.grad, alpha=group["lr"] / group["k"])


def test_what_an_optimizer_keeps_in_its_groups_goes_with_a_missed_commit() -> None:
    ranks = [Rank(lambda p: Counting(p, lr=0.1)) for _ in range(2)]
    synchronise(ranks, 1)
    for number, rank in enumerate(ranks):
        rank.optimizer.param_groups[0]["lr"] = 0.1 * (number + 1)
        rank.train(data(number, BATCH))
    wires, reduced = sent(ranks)
    assert ranks[0].replica.commit(wires[0], reduced)
    synchronise(ranks, 2)
    assert [rank.optimizer.param_groups[0]["k"] for rank in ranks] == [1, 1]
    assert [rank.optimizer.param_groups[0]["lr"] for rank in ranks] == [0.1, 0.2]
    for number, rank in enumerate(ranks):
        rank.done = 0
        rank.train(data(10 + number, BATCH))
    commit(ranks)
    assert_alike(ranks)


def test_an_optimizer_of_other_options_is_refused_before_anything_is_read_by_its_places() -> None:
    def split(parameters: Any) -> torch.optim.Optimizer:
        first, *rest = parameters
        return torch.optim.SGD([{"params": [first]}, {"params": rest}], lr=0.1)

    makers = (MAKERS["sgd"], MAKERS["adam"], MAKERS["sgd"], split)
    ranks = [Rank(make) for make in makers]
    held = [rank.replica.held() for rank in ranks]
    decision = decide(held, with_optimizer=True)
    for number in (0, 2):
        ranks[number].replica._require_same_options(decision, number)
    with pytest.raises(RunEndedError, match=r"ranks 1, 3 has other options than that of rank 0.*group 0: betas, eps"):
        ranks[1].replica._require_same_options(decision, 1)
    with pytest.raises(RunEndedError, match=r"Rank 3 steps with .*group 1: dampening.*in the optimizer factory"):
        ranks[3].replica._require_same_options(decision, 3)


def test_only_then_does_the_optimizer_go_with_the_commit() -> None:
    held = [Held(True, 8, 2), Held(True, 9, 2)]
    assert decide(held, with_optimizer=True).optimizer and not decide(held).optimizer
    assert not decide([Held(True, 9, 2)] * 2, with_optimizer=True).optimizer


@pytest.mark.parametrize(("average", "refused"), [("gradients", True), ("parameters", False)])
def test_an_optimizer_that_computes_gradients_itself_is_refused(average: str, refused: bool) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.LBFGS(model.parameters())
    knobs = ElcheSpec.model_validate({"average": average})

    def make() -> ModelState:
        return build(model, optimizer, knobs, Mode.CPU_CADENCE, torch.device("cpu"))

    if refused:
        with pytest.raises(UnsupportedModelError, match=r"LBFGS computes gradients anew .* spec\.elche\.average"):
            make()
    else:
        assert make().gradients is None
