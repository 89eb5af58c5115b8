"""A training that reads sample by sample in worker processes, of which one sample is bad and one rank is small."""

import os
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import Dataset

import fdl_trainer

SAMPLES, BAD = 2048, 1234
BEARS = 5 if os.environ.get("SMALL") else 1 << 30


class Points(Dataset[Any]):
    """Points of two classes; reading one of them fails."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        if index == BAD:
            raise OSError("its sector is gone")
        generator = torch.Generator().manual_seed(index)
        return torch.randn(16, generator=generator) + 0.7 * (index % 2), index % 2


class Net(torch.nn.Linear):
    """Runs out of memory above some samples, as on a small device."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of the classes."""
        if len(x) > BEARS:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().forward(x)


def main(session: fdl_trainer.Session) -> None:
    """Train."""
    session.setup(
        model=lambda: Net(16, 2),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05),
        dataset=Points(),
        batch_size=32,
        epochs=2,
        workers=2,
        on_sample_error="skip",
    )
    children = open(f"/proc/self/task/{os.getpid()}/children").read()  # noqa: PTH123, SIM115
    print(f"workers {children}", flush=True)
    for _ in session:
        session.step(lambda batch: functional.cross_entropy(session.model(batch[0]), batch[1]))


fdl_trainer.run(main)
