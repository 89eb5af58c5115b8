"""A training that tells where it ran."""

import torch
from torch import nn
from torch.nn import functional

import fdl_trainer
from fdl_trainer.groups.nccl import nccl_version


def main(session: fdl_trainer.Session) -> None:
    """Two passes over a few points."""
    points = torch.randn(4096, 16, generator=torch.Generator().manual_seed(1))
    session.setup(
        model=lambda: nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2)),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
        dataset=(points, (points.sum(1) > 0).long()),
        batch_size=32,
        epochs=2,
    )
    for x, y in session:
        loss = functional.cross_entropy(session.model(x), y)
        session.optimizer.zero_grad()
        loss.backward()
        session.optimizer.step()
        session.report(loss)
    loaded = ".".join(map(str, nccl_version() or ()))
    print(f"trained on {session.device} by NCCL {loaded}", flush=True)


fdl_trainer.run(main)
