"""The optimizer's own tensors: whose, how they weigh, when they are averaged, and that a failure leaves them alone."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from fdl_api.run import ElcheSpec, Mode
from fdl_trainer import agreed, ledger, plan, tail
from fdl_trainer.agreed import Control
from fdl_trainer.averaging import Averaging, ModelState, Share, Slots, Weighing, Weights, Wire
from fdl_trainer.averaging.slots import MAX_SLOTS, count_of, expected, mark_of
from fdl_trainer.plan import PlanSpec
from fdl_trainer.replica import Replica
from fdl_trainer.tail import RankTail, Tail

Maker = Callable[[Any], torch.optim.Optimizer]


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01, amsgrad=True)


class Rank:
    """A model that was trained for some steps on noise of its own, and its optimizer."""

    def __init__(self, number: int, steps: int, make: Maker = momentum, *, only: Sequence[str] = ()) -> None:
        torch.manual_seed(7)
        self.model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        self.optimizer = make(self.model.parameters())
        self.slots = Slots(list(self.model.parameters()), self.optimizer, Weighing())
        torch.manual_seed(100 + number)
        for _ in range(steps):
            for name, parameter in self.model.named_parameters():
                parameter.grad = torch.randn_like(parameter) if not only or name in only else None
            self.optimizer.step()

    def held(self, name: str) -> dict[str, torch.Tensor]:
        return {
            key: self.optimizer.state[parameter][name].clone()
            for key, parameter in self.model.named_parameters()
            if self.optimizer.state.get(parameter)
        }

    def everything(self) -> dict[str, torch.Tensor]:
        return {
            f"{key}.{name}": value.clone()
            for key, parameter in self.model.named_parameters()
            for name, value in self.optimizer.state.get(parameter, {}).items()
        }


def average(ranks: Sequence[Rank], shares: Sequence[Share], *, finite: Sequence[bool] | None = None) -> int:
    """What a window does with the slots; returns the mark."""
    mark = Tail(tuple(RankTail(str(i), slots=rank.slots.mark) for i, rank in enumerate(ranks))).slots
    parts = [torch.full((rank.slots.room(count_of(mark)),), float("nan")) for rank in ranks]
    for number, (rank, part, share) in enumerate(zip(ranks, parts, shares, strict=True)):
        rank.slots.pack(part, mark, share, torch.tensor(finite is None or finite[number]))
    for rank in ranks:
        rank.slots.take(torch.stack(parts).sum(0), mark)
    return mark


def test_momentum_becomes_the_weighted_mean_on_all_ranks() -> None:
    ranks = [Rank(0, 3), Rank(1, 7), Rank(2, 2)]
    samples = [24, 56, 0]
    before = [rank.held("momentum_buffer") for rank in ranks]
    average(ranks, [Share(count // 8, count) for count in samples])
    for key in before[0]:
        wanted = sum(n * held[key].double() for n, held in zip(samples, before, strict=True)) / sum(samples)
        for rank in ranks:
            torch.testing.assert_close(rank.held("momentum_buffer")[key].double(), wanted, rtol=1e-6, atol=1e-6)


def test_moments_of_adam_are_brought_to_one_scale_and_steps_stay() -> None:
    ranks, samples = [Rank(0, 2, adam), Rank(1, 9, adam)], [10, 45]
    steps = [2, 9]
    names = {"exp_avg": 0.9, "exp_avg_sq": 0.999, "max_exp_avg_sq": 0.999}
    before = {name: [rank.held(name) for rank in ranks] for name in names}
    average(ranks, [Share(2, 10), Share(9, 45)])
    for name, beta in names.items():
        scales = [1.0 - beta**step for step in steps]
        for key in before[name][0]:
            mean = sum(
                n * held[key].double() / scale for n, held, scale in zip(samples, before[name], scales, strict=True)
            ) / sum(samples)
            for rank, scale in zip(ranks, scales, strict=True):
                torch.testing.assert_close(rank.held(name)[key].double(), scale * mean, rtol=2e-6, atol=1e-8)
    assert [rank.held("step")["0.weight"].item() for rank in ranks] == steps


def test_equal_gradients_give_the_same_estimate_at_any_step() -> None:
    """Without the scale a rank at step 3 would divide the others' moments by its own small correction."""
    ranks = [Rank(0, 0, adam), Rank(1, 0, adam)]
    for rank, steps in zip(ranks, (3, 400), strict=True):
        for _ in range(steps):
            for parameter in rank.model.parameters():
                parameter.grad = torch.full_like(parameter, 0.5)
            rank.optimizer.step()
    before = [rank.everything() for rank in ranks]
    average(ranks, [Share(3, 30), Share(400, 4000)])
    for rank, held in zip(ranks, before, strict=True):
        for key, value in rank.everything().items():
            torch.testing.assert_close(value, held[key], rtol=1e-4, atol=0.0)


def test_who_has_no_state_yet_weighs_nothing_and_stays_fresh() -> None:
    ranks = [Rank(0, 4), Rank(1, 0), Rank(2, 4)]
    before = [rank.held("momentum_buffer") for rank in ranks]
    mark = average(ranks, [Share(1, 10), Share(3, 70), Share(1, 30)])
    assert mark == mark_of(["momentum_buffer"]) and not ranks[1].everything()
    for key in before[0]:
        wanted = (10 * before[0][key] + 30 * before[2][key]) / 40
        torch.testing.assert_close(ranks[0].held("momentum_buffer")[key], wanted)


def test_nobody_has_state_at_first() -> None:
    ranks = [Rank(0, 0), Rank(1, 0)]
    assert average(ranks, [Share(1, 10), Share(1, 10)]) == 0
    assert [rank.slots.mark for rank in ranks] == [0, 0] and not ranks[0].everything()


def test_a_parameter_that_one_rank_never_trained_is_divided_by_the_others_weights() -> None:
    ranks = [Rank(0, 4), Rank(1, 4, only=["0.weight"])]
    alone = ranks[0].held("momentum_buffer")["2.weight"]
    both = [rank.held("momentum_buffer")["0.weight"] for rank in ranks]
    average(ranks, [Share(1, 10), Share(1, 30)])
    torch.testing.assert_close(ranks[0].held("momentum_buffer")["2.weight"], alone)
    torch.testing.assert_close(ranks[1].held("momentum_buffer")["0.weight"], (both[0] + 3 * both[1]) / 4)
    assert set(ranks[1].held("momentum_buffer")) == {"0.weight"}


@pytest.mark.parametrize("model", [True, False], ids=["moments", "model"])
def test_what_is_not_finite_is_in_no_average(model: bool) -> None:
    ranks = [Rank(0, 4), Rank(1, 4)]
    good = ranks[0].held("momentum_buffer")
    ranks[1].optimizer.state[ranks[1].model[0].weight]["momentum_buffer"][0, 0] = float("inf")
    average(ranks, [Share(1, 10), Share(1, 30)], finite=[True, model])
    for rank in ranks:
        for key, value in rank.held("momentum_buffer").items():
            torch.testing.assert_close(value, good[key])


def test_a_rank_with_other_slots_keeps_its_own() -> None:
    ranks = [Rank(0, 4), Rank(1, 4, adam), Rank(2, 4)]
    before = ranks[1].everything()
    average(ranks, [Share(1, 10), Share(1, 30), Share(1, 10)])
    assert all(torch.equal(value, before[key]) for key, value in ranks[1].everything().items())


class Oddly(torch.optim.SGD):
    """Keeps a row sum, a note and a count besides its momentum; one parameter has no dimensions."""

    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter].update(rows=torch.zeros(3), note="x", step=torch.tensor(5.0))
        return result


def test_what_is_no_slot_stays_each_ranks_own_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    scalar = nn.Parameter(torch.tensor(2.0))
    matrix = nn.Parameter(torch.ones(2, 3))
    optimizer = Oddly([matrix, scalar], lr=0.1, momentum=0.9)
    matrix.grad, scalar.grad = torch.ones_like(matrix), torch.ones_like(scalar)
    optimizer.step()
    slots = Slots([matrix, scalar], optimizer, Weighing())
    with caplog.at_level(logging.INFO):
        assert slots.names() == slots.names() == ["momentum_buffer"]
    assert [record.getMessage() for record in caplog.records] == [
        "of the optimizer's state momentum_buffer are averaged; each rank's own stay note, rows, step"
    ]
    region = torch.empty(slots.room(1))
    slots.pack(region, slots.mark, Share(1, 2), torch.tensor(True))
    assert region.tolist() == [2.0] * 7 + [2.0, 2.0]


def test_marks_tell_sets_of_names_apart() -> None:
    names = [f"slot{i}" for i in range(MAX_SLOTS + 1)]
    marks = {mark_of(names[:count]) for count in range(1, MAX_SLOTS + 1)}
    assert len(marks) == MAX_SLOTS and all(0 < mark < tail.MAX_COUNTER for mark in marks)
    assert [count_of(mark_of(names[:count])) for count in (0, 1, MAX_SLOTS, MAX_SLOTS + 1)] == [0, 1, MAX_SLOTS, 0]
    assert mark_of(["a"]) != mark_of(["b"])


def test_most_ranks_decide_what_is_averaged_and_ties_go_to_the_lowest() -> None:
    def voted(*marks: int) -> int:
        return Tail(tuple(RankTail(str(i), slots=mark) for i, mark in enumerate(marks))).slots

    assert (voted(0, 0), voted(0, 18), voted(33, 18), voted(33, 18, 18)) == (0, 18, 33, 18)


def test_memory_is_counted_with_adams_two_and_three_with_amsgrad() -> None:
    parameters = [nn.Parameter(torch.zeros(2))]
    assert (expected(torch.optim.Adam(parameters)), expected(adam(parameters))) == (2, 3)


# --- whole windows of replicas ---------------------------------------------------------------------------


class Cohort:
    """Replicas that reduce without processes: sums are taken in the order of the ranks."""

    def __init__(self, every: int | None, quotas: Sequence[int], make: Maker = momentum, **settings: Any) -> None:
        knobs = ElcheSpec.model_validate({"averageStateEvery": every, **settings})
        self.spec = PlanSpec.of(Mode.CPU_CADENCE, knobs)
        self.ranks = [Rank(number, 0, make) for number in range(len(quotas))]
        self.quotas = list(quotas)
        control = plan.create(ledger.create(10**6, 8, 1, 0), self.spec)
        members = [str(number) for number in range(len(quotas))]
        control = plan.enter_epoch(control, members, self.spec)
        averaging = Averaging.of(knobs)
        self.replicas = [
            Replica(ModelState(rank.model, averaging), rank.optimizer, control, self.spec, writable=False)
            for rank in self.ranks
        ]
        for replica in self.replicas:
            replica.model.capture()
        self.wires = [replica.new_wire(number, len(quotas)) for number, replica in enumerate(self.replicas)]

    def train(self) -> None:
        """Each rank trains its lease, or as many batches as it was told."""
        for number, rank in enumerate(self.ranks):
            for _ in range(self.quotas[number]):
                for parameter in rank.model.parameters():
                    parameter.grad = torch.randn_like(parameter)
                rank.optimizer.step()

    def lease(self) -> list[Share]:
        """What each rank did, within its lease of the books."""
        control = self.control
        done = [control.batches(str(number))[:quota] for number, quota in enumerate(self.quotas)]
        return [Share(len(spans), sum(span.size for span in spans)) for spans in done]

    @property
    def control(self) -> Control:
        return self.replicas[0].control

    def reduce(self, shares: Sequence[Share]) -> Tail:
        tails = []
        for number, (replica, share) in enumerate(zip(self.replicas, shares, strict=True)):
            wire = self.wires[number] = replica.pack(self.wires[number], share)
            own = RankTail(
                str(number), share.batches, share.samples, compute_ms=4.0, slots=replica.held_slots(),
                digest=agreed.digest(replica.control),
            )  # fmt: skip
            tails.append(tail.encode(own, number, len(self.ranks)))
            wire.write_tail(tails[-1], tails[-1])
        for parts in zip(*(wire.parts for wire in self.wires), strict=True):
            total = torch.stack([part.float() for part in parts]).sum(0)
            for part in parts:
                part.copy_(total)
        members = [str(number) for number in range(len(self.ranks))]
        reduced = tail.decode(self.wires[0].read_tail(), members)
        assert reduced.agreed
        return reduced

    def window(self) -> None:
        self.train()
        reduced = self.reduce(self.lease())
        assert all(replica.commit(wire, reduced) for replica, wire in zip(self.replicas, self.wires, strict=True))


def apart(cohort: Cohort) -> bool:
    held = [rank.held("momentum_buffer") for rank in cohort.ranks]
    return not all(torch.allclose(held[0][key], other[key], rtol=1e-5, atol=1e-6) for other in held for key in other)


def test_every_third_committed_window_averages_them() -> None:
    cohort = Cohort(3, [2, 2])
    seen = []
    for _ in range(7):
        cohort.window()
        seen.append(apart(cohort))
    assert seen == [True, True, False, True, True, False, True]


def test_by_default_windows_leave_the_optimizers_alone() -> None:
    cohort = Cohort(None, [2, 1])
    for _ in range(3):
        cohort.train()
        before = [rank.everything() for rank in cohort.ranks]
        reduced = cohort.reduce(cohort.lease())
        assert all(wire.extra.numel() == 0 for wire in cohort.wires)
        for replica, wire in zip(cohort.replicas, cohort.wires, strict=True):
            replica.commit(wire, reduced)
        for rank, held in zip(cohort.ranks, before, strict=True):
            assert all(torch.equal(value, held[key]) for key, value in rank.everything().items())


@pytest.mark.parametrize("settings", [{}, {"bf16Wire": True}, {"weights": "normalized"}, {"weights": "batches"}])
def test_unequal_quotas_and_other_settings(settings: dict[str, Any]) -> None:
    cohort = Cohort(2, [2, 1, 0], adam, **settings)
    cohort.window()
    cohort.train()
    shares = cohort.lease()
    before = [rank.everything() for rank in cohort.ranks]
    weights = [0.0 if not share.samples else 1.0 if "normalized" in settings.values() else float(share.samples)
               for share in shares]  # fmt: skip
    reduced = cohort.reduce(shares)
    for replica, wire in zip(cohort.replicas, cohort.wires, strict=True):
        replica.commit(wire, reduced)
    for key, value in cohort.ranks[0].everything().items():
        if key.endswith("step"):
            assert torch.equal(value, before[0][key])
            continue
        beta = 0.9 if key.endswith("exp_avg") else 0.999
        scales = [1.0 - beta**steps for steps in (4, 2)]
        mean = sum(w * held[key].double() / scale for w, held, scale in zip(weights, before, scales, strict=False))
        torch.testing.assert_close(value.double(), scales[0] * mean / sum(weights), rtol=1e-5, atol=1e-8)
    assert not cohort.ranks[2].everything(), "it has never stepped"


def test_a_reduce_that_fails_leaves_them_and_is_repeated_with_the_same_numbers() -> None:
    cohort = Cohort(2, [2, 2])
    cohort.window()
    cohort.train()
    before = [rank.everything() for rank in cohort.ranks]
    shares = cohort.lease()
    cohort.reduce(shares)
    for wire in cohort.wires:
        for part in wire.parts:
            part.fill_(float("nan"))
    for rank, held in zip(cohort.ranks, before, strict=True):
        assert all(torch.equal(value, held[key]) for key, value in rank.everything().items())
    fresh = [replica.new_wire(number, 2) for number, replica in enumerate(cohort.replicas)]
    cohort.wires = fresh
    reduced = cohort.reduce(shares)
    for replica, wire in zip(cohort.replicas, cohort.wires, strict=True):
        replica.commit(wire, reduced)
    assert cohort.control.window == 2 and not apart(cohort)


def test_a_joiner_without_state_and_one_with_the_donors_take_part() -> None:
    cohort = Cohort(1, [2, 2, 0])
    cohort.window()
    cohort.window()
    assert not cohort.ranks[2].everything()
    cohort.ranks[2].optimizer.load_state_dict(cohort.ranks[0].optimizer.state_dict())
    cohort.window()
    joined = cohort.ranks[2].held("momentum_buffer")
    assert all(torch.allclose(joined[key], value) for key, value in cohort.ranks[0].held("momentum_buffer").items())


def test_one_rank_alone_is_left_alone() -> None:
    cohort = Cohort(1, [2])
    for _ in range(3):
        cohort.train()
        before = cohort.ranks[0].everything()
        reduced = cohort.reduce(cohort.lease())
        cohort.replicas[0].commit(cohort.wires[0], reduced)
        assert all(torch.equal(value, before[key]) for key, value in cohort.ranks[0].everything().items())


def test_frozen_parameters_have_no_slots() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    model[0].requires_grad_(False)
    state = ModelState(model)
    slots = Slots(state.parameters, momentum(model.parameters()), Weighing(Weights.SAMPLES))
    assert slots.room(1) == 4 + 2


def test_the_room_behind_the_tail_is_reduced_only_when_used() -> None:
    state = ModelState(nn.Linear(2, 2))
    wire: Wire = state.new_wire(0, 2, 3, room=5)
    base = wire.parts[0].numel()
    wire.use(5)
    assert wire.parts[0].numel() == base + 5 and wire.extra.numel() == 5
    wire.use(0)
    assert wire.parts[0].numel() == base


def test_old_checkpoints_know_nothing_of_them() -> None:
    spec = PlanSpec.of(Mode.CPU_CADENCE, ElcheSpec())
    control = replace(plan.create(ledger.create(100, 10, 1, 0), spec), slots=33)
    data = agreed.to_json(control)
    assert agreed.from_json(data) == control
    del data["slots"]
    assert agreed.from_json(data).slots == 0
