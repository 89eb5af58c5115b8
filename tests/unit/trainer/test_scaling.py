"""Steps behind a gradient scaler: what is scaled, what is left out, and what is counted."""

import logging
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from fdl_trainer.ledger import Span
from fdl_trainer.session import Session
from fdl_trainer.trainer import Trainer
from fdl_trainer.work import WindowWork

SAMPLES, BATCH, HUGE = 80, 8, 1e35
"""A gradient of 1e35 is a float32, and 65536 times it is none: only scaled steps overflow."""

Make = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "looked at by the scaler": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "looks itself": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, fused=True),
    "fused Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01, fused=True),
}


class Small(nn.Linear):
    """Runs out of memory above some samples."""

    bears = 1 << 30

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > self.bears:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().forward(x)


def data(*, huge: bool) -> tuple[torch.Tensor, ...]:
    x = torch.randn(SAMPLES, 3, generator=torch.Generator().manual_seed(1))
    if huge:
        x[13] = HUGE
    return x, torch.arange(SAMPLES)


def train(make: Make, scaler: torch.amp.GradScaler | None, **how: Any) -> tuple[Session, float]:
    """Two passes; without a scaler, batches with the huge sample are skipped by hand. Also gives the loss reported."""
    session = Session()
    bears, clip_norm = how.get("bears", 1 << 30), how.get("clip_norm")
    session.setup(
        model=lambda: Small(3, 1),
        optimizer=make,
        dataset=data(huge=True),
        batch_size=BATCH,
        epochs=2,
    )
    session.model.bears = bears  # type: ignore[assignment]
    reported = 0.0
    for x, number in session:
        if scaler is None and 13 in number:
            session.skip("by hand")
            continue
        session.step(lambda batch: session.model(batch[0]).mean(), scaler=scaler, clip_norm=clip_norm)
        assert x.dtype == torch.float32 and session._loop is not None
        reported = session._loop.work.loss_sum()
    session.finish()
    session.close()
    return session, reported


@pytest.mark.parametrize("bears", [1 << 30, 3])
@pytest.mark.parametrize("clip_norm", [None, 0.01])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_scaled_training_is_the_plain_one_without_the_batches_that_overflow(
    name: str, clip_norm: float | None, bears: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    scaled, loss = train(OPTIMIZERS[name], scaler, clip_norm=clip_norm, bears=bears)
    plain, _ = train(OPTIMIZERS[name], None, clip_norm=clip_norm)
    assert scaled._loop is not None
    control = scaled._loop.replica.control
    assert control.finished and (control.samples, control.ledger.skipped) == (2 * SAMPLES - 16, 16)
    assert scaler.get_scale() == 65536.0 / 4, "one step of each pass was left out"
    assert "the fp16 gradient scaler left the step out" in caplog.text
    assert abs(loss) < 1e4, "the huge loss is not among those reported"
    for mine, wanted in zip(scaled.model.parameters(), plain.model.parameters(), strict=True):
        # Powers of two change no bit; parts add up in another order.
        assert torch.allclose(mine, wanted, rtol=0.0, atol=0.0 if bears > BATCH else 1e-6)
        assert torch.isfinite(mine).all()


def weight_after(scaler: torch.amp.GradScaler | None) -> torch.Tensor:
    session = Session()
    session.setup(
        model=lambda: nn.Linear(3, 1),
        optimizer=OPTIMIZERS["fused Adam"],
        dataset=data(huge=False),
        batch_size=BATCH,
        epochs=1,
    )
    for _ in session:
        session.step(lambda batch: session.model(batch[0]).square().mean(), scaler=scaler)
    assert session._loop is not None and session._loop.replica.control.ledger.skipped == 0
    session.close()
    return next(session.model.parameters()).detach()


def test_a_scaler_that_is_off_changes_nothing() -> None:
    assert torch.equal(weight_after(torch.amp.GradScaler("cpu", enabled=False)), weight_after(None))


def test_what_was_left_out_on_the_device_is_read_once_and_at_the_end() -> None:
    work = WindowWork()
    for number, found in enumerate([0.0, 1.0, 2.0]):
        work.report(torch.tensor(float("inf") if found else 1.0), 8)
        work.skip_if(torch.tensor(found))
        work.finished(Span(8 * number, 8 * number + 8), skipped=number)
    assert work._overflowed is not None and work._skipped == 3
    assert (work.samples, work.skipped, work.loss_sum()) == (8, 16, 8.0)
    assert work._overflowed is None and work.skipped == 16
    work.skip_if(torch.tensor(1.0))
    work.skip()
    work.finished(Span(24, 32))
    assert (work.samples, work.skipped) == (8, 24), "a batch is skipped once"


def test_a_trainer_in_fp16_trains() -> None:
    dtypes: set[torch.dtype] = set()

    def loss(model: Any, batch: Any) -> torch.Tensor:
        x, number = batch
        y = model(x)
        dtypes.add(y.dtype)
        return functional.mse_loss(y.float().squeeze(1), (number % 2).float())

    trainer = Trainer(
        model=lambda: nn.Linear(3, 1),
        optimizer=OPTIMIZERS["looked at by the scaler"],
        dataset=data(huge=False),
        loss=loss,
        batch_size=BATCH,
        epochs=1,
        precision="fp16",
    )
    session = Session()
    trainer.main(session)
    assert dtypes == {torch.float16} and session.complete
    session.close()
