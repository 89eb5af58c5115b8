"""What the flat buffers cost, said before the training starts. Pure."""

from dataclasses import dataclass

from fdl_trainer.averaging.settings import Averaging

_GIB = 1024.0**3


class NotEnoughMemoryError(ValueError):
    """The buffers of the average do not fit; the message says how much is missing and what to do."""


@dataclass(frozen=True)
class Demand:
    """Bytes for each averaged parameter, on top of the model, its gradients and its optimizer.

    Attributes:
        buffers: where the flat buffers live.
        model: on the model's device, when that is another one.
    """

    buffers: float
    model: float


def demand(
    averaging: Averaging, *, element: int = 4, staged: bool = False, overlap: bool = False, slots: int = 0
) -> Demand:
    """What a configuration takes.

    Args:
        averaging: the run's settings.
        element: bytes of a flat element: 4, or 8 for a model with fp64 tensors.
        staged: the model is on another device than the flat buffers.
        overlap: training goes on during a reduce, so that a snapshot is kept.
        slots: tensors of the optimizer's that are averaged, for each parameter.
    """
    wire = (2 if averaging.bf16_wire else element) + slots * element
    committed = 2 * element
    momentum = 2 * element if averaging.outer.has_state else 0
    snapshot = element if overlap else 0
    buffers = wire + committed + momentum
    snapshot += element if averaging.gradients else 0  # their sums, on the model's device like the snapshot
    return Demand(buffers, element + snapshot) if staged else Demand(buffers + snapshot, 0)


def require(parameters: int, need: Demand, free_bytes: int, free_device_bytes: int | None = None) -> None:
    """Refuse a configuration that does not fit.

    Args:
        parameters: averaged elements.
        need: of :func:`demand`.
        free_bytes: free where the flat buffers live, for this rank.
        free_device_bytes: free on the model's device, when that is another one.

    Raises:
        NotEnoughMemoryError: it does not fit.
    """
    places = [("", need.buffers, free_bytes)]
    if free_device_bytes is not None:
        places.append((" on the model's device", need.model, free_device_bytes))
    for where, each, free in places:
        wanted = parameters * each
        if wanted > free:
            raise NotEnoughMemoryError(
                f"Averaging {parameters} parameters takes {each:.0f} bytes each{where}, {wanted / _GIB:.2f} GiB, and "
                f"only {free / _GIB:.2f} GiB are free there for this rank. Give the member more memory or fewer ranks, "
                "freeze parameters before session.setup returns, or do without spec.elche.outer, averageStateEvery "
                "and average: gradients."
            )
