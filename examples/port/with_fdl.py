"""Two Gaussian classes with fdl: alone on this machine, or as one rank of a run."""

import torch
from blobs import accuracy, blobs, net
from torch.nn import functional

import fdl_trainer


def main(session: fdl_trainer.Session) -> None:
    session.setup(
        model=net,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
        dataset=blobs(4096, seed=1),
        batch_size=32,
        epochs=2,
    )
    for x, y in session:
        loss = functional.cross_entropy(session.model(x), y)
        session.optimizer.zero_grad()
        loss.backward()
        session.optimizer.step()
        session.report(loss)
    session.evaluate(lambda model: {"accuracy": accuracy(model)})


fdl_trainer.run(main)
