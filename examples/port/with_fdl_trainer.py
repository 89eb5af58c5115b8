"""Two Gaussian classes with fdl's Trainer: no loop of one's own."""

import torch
from blobs import accuracy, blobs, net
from torch.nn import functional

import fdl_trainer

fdl_trainer.Trainer(
    model=net,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    scheduler=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=256),
    dataset=blobs(4096, seed=1),
    batch_size=32,
    epochs=2,
    loss=lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]),
    clip_norm=1.0,
    precision="bf16",
    evaluate=lambda model: {"accuracy": accuracy(model)},
).fit()
