"""fp16 for real: autocast, a gradient that overflows, and no wait for the device in a step."""

from typing import Any

import pytest
import torch
from torch import nn

from fdl_trainer.session import Session


def overflowing() -> tuple[torch.Tensor, ...]:
    """One of ten batches has activations that fp16 cannot hold."""
    x = torch.randn(80, 16, generator=torch.Generator().manual_seed(3))
    x[11] = 6e4
    return x, torch.arange(80)


@pytest.mark.parametrize("fused", [False, True])
def test_batches_that_overflow_in_fp16_are_skipped_and_the_rest_is_trained(fused: bool) -> None:
    session = Session()
    session.setup(
        model=lambda: nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, fused=fused),
        dataset=overflowing(),
        batch_size=8,
        epochs=2,
    )
    scaler = torch.amp.GradScaler(session.device.type, init_scale=256.0)

    def loss(batch: Any) -> torch.Tensor:
        with torch.autocast(session.device.type, torch.float16):
            return session.model(batch[0]).float().square().mean()

    for steps, (_, number) in enumerate(session):
        overflows = 11 in number.tolist()
        if fused and steps > 1:  # the first steps allocate
            torch.cuda.set_sync_debug_mode("error")
        try:
            session.step(loss, clip_norm=1.0, scaler=scaler)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        if overflows:
            assert any(not bool(p.grad.isfinite().all()) for p in session.model.parameters() if p.grad is not None)
    session.finish()
    assert session._loop is not None
    control = session._loop.replica.control
    assert control.finished and (control.samples, control.ledger.skipped) == (144, 16)
    assert scaler.get_scale() == 64.0
    assert all(bool(p.isfinite().all()) for p in session.model.parameters())
    session.close()
