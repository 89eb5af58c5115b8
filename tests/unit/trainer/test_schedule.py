import math
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, ReduceLROnPlateau

from fdl_trainer.schedule import SampleSchedule
from fdl_trainer.trainer import Trainer

STEPS, SAMPLES = 100, 32


def make() -> tuple[torch.optim.Optimizer, SampleSchedule]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.8)
    return optimizer, SampleSchedule(optimizer, lambda o: CosineAnnealingLR(o, T_max=STEPS), SAMPLES)


def cosine(step: int) -> float:
    return 0.4 * (1 + math.cos(math.pi * step / STEPS))


def rate(optimizer: torch.optim.Optimizer) -> float:
    return float(optimizer.param_groups[0]["lr"])


def test_the_rate_follows_samples_however_they_come() -> None:
    optimizer, schedule = make()
    samples = 0.0
    for jump in (0.0, 31.9, 0.1, 500.0, 7.5, 32.0, 1000.0):
        samples += jump
        schedule.advance(samples)
        assert rate(optimizer) == pytest.approx(cosine(int(samples) // SAMPLES))


def test_a_rank_that_resumes_or_joins_comes_to_the_same_rate() -> None:
    """A checkpoint, or a donor's state, puts its own rate into the optimizer before the first batch."""
    first, schedule = make()
    schedule.advance(40 * SAMPLES)
    state = first.state_dict()
    resumed, other = make()
    resumed.load_state_dict(state)
    other.advance(41 * SAMPLES)
    schedule.advance(41 * SAMPLES)
    assert rate(resumed) == pytest.approx(rate(first)) == pytest.approx(cosine(41))


def test_a_warm_up_starts_low() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = SampleSchedule(optimizer, lambda o: LinearLR(o, 0.1, total_iters=10), 1)
    schedule.advance(0)
    assert rate(optimizer) == pytest.approx(0.1)
    schedule.advance(10)
    assert rate(optimizer) == pytest.approx(1.0)


def test_a_scheduler_that_follows_a_metric_is_refused() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    factory: Any = ReduceLROnPlateau
    with pytest.raises(TypeError, match=r"scheduler is a ReduceLROnPlateau, .* this rank alone"):
        SampleSchedule(optimizer, factory, 1).advance(0)
    with pytest.raises(ValueError, match="samples_per_step is 0"):
        SampleSchedule(optimizer, LRScheduler, 0)


def test_a_trainer_with_an_unknown_precision_is_refused() -> None:
    unknown: Any = "fp8"
    with pytest.raises(ValueError, match='precision is "fp8"'):
        Trainer(
            model=lambda: torch.nn.Linear(1, 1),
            optimizer=torch.optim.SGD,
            dataset=(torch.zeros(1),),
            loss=lambda model, batch: model(batch),
            batch_size=1,
            epochs=1,
            precision=unknown,
        )
