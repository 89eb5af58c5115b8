"""A training in fp64 whose model is sharded by FSDP2 where a rank spans the devices of its member."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

import fdl_trainer

SAMPLES, BATCH = 2_000, 48
"""The last batch of a pass has 32 samples."""


def net() -> nn.Module:
    """Of odd sizes, so that shards are unequal."""
    return nn.Sequential(nn.Linear(16, 97), nn.Tanh(), nn.Linear(97, 45), nn.Tanh(), nn.Linear(45, 2)).double()


def shard(model: nn.Module, mesh: Any) -> None:
    """The last layer by itself, and the whole model."""
    from torch.distributed.fsdp import fully_shard

    assert isinstance(model, nn.Sequential)
    fully_shard(model[-1], mesh=mesh)
    fully_shard(model, mesh=mesh)


def main(session: fdl_trainer.Session) -> None:
    """Train and evaluate."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(SAMPLES) % 2
    points = (torch.randn(SAMPLES, 16, generator=generator) + 0.7 * labels[:, None]).double()
    session.setup(
        model=net,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        dataset=(points, labels),
        batch_size=BATCH,
        epochs=3,
        shard=shard,
    )
    for _ in session:
        session.step(lambda part: functional.cross_entropy(session.model(part[0]), part[1]), clip_norm=0.5)
    first = next(session.model.parameters())
    print(f"held {type(first).__name__} on {torch.cuda.get_device_properties(session.device).uuid}", flush=True)
    inputs, wanted = points.to(session.device), labels.to(session.device)
    session.evaluate(lambda model: {"loss": float(functional.cross_entropy(model(inputs), wanted))})


fdl_trainer.run(main)
