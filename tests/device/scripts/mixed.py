"""A small convolutional training on the rank's device, plain, with bf16 autocast, or compiled."""

import argparse
import hashlib

import torch
from torch import Tensor, nn
from torch.nn import functional

import fdl_trainer

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=8192)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--work", type=int, default=1, help="forward passes a batch")
parser.add_argument("--amp", action="store_true")
parser.add_argument("--compile", action="store_true")
OPTIONS = parser.parse_args()


def pictures(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noise with a bright square at the top or at the bottom: two classes, 1 x 16 x 16."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % 2
    images = torch.randn(samples, 1, 16, 16, generator=generator)
    rows = torch.arange(16)[None, :] // 8 == labels[:, None]
    return images + 0.5 * rows[:, None, :, None], labels


def net() -> nn.Module:
    """Convolutions with BatchNorm."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 64, 2),
    )


def main(session: fdl_trainer.Session) -> None:
    """Train and evaluate."""
    session.setup(
        model=net,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        dataset=pictures(OPTIONS.samples, 1),
        batch_size=OPTIONS.batch,
        epochs=OPTIONS.epochs,
    )
    model = torch.compile(session.model) if OPTIONS.compile else session.model
    for x, y in session:
        with torch.autocast("cuda", torch.bfloat16, enabled=OPTIONS.amp):
            for _ in range(OPTIONS.work):
                loss = functional.cross_entropy(model(x), y)
        session.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(session.model.parameters(), 1.0)
        session.optimizer.step()
        session.report(loss)
    state = session.model.state_dict()
    content = b"".join(state[name].cpu().numpy().tobytes() for name in sorted(state))
    where = f"{session.device} {torch.cuda.get_device_properties(session.device).uuid}"
    print(f"digest {hashlib.sha256(content).hexdigest()} on {where}", flush=True)
    points, labels = (tensor.to(session.device) for tensor in pictures(1000, 2))
    session.evaluate(lambda net: {"accuracy": float((net(points).argmax(1) == labels).float().mean())})


fdl_trainer.run(main)
