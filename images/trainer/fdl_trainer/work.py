"""What a rank has done in the window in work, and how long it took."""

import math
import time
from dataclasses import dataclass, field

import torch

from fdl_trainer.ledger import Span
from fdl_trainer.tail import Flag, RankTail


@dataclass
class WindowWork:
    """Batches of one rank in one uncommitted window.

    Attributes:
        done: the micro-batches trained, in the order of the lease.
        compute_ms: milliseconds in the script, from a batch's hand-over to the request for the next.
        wait_ms: milliseconds of waiting for data, without the first batch of the window.
        first_wait_ms: the same of the first batch.
    """

    done: list[Span] = field(default_factory=list)
    compute_ms: float = 0.0
    wait_ms: float = 0.0
    first_wait_ms: float = 0.0
    _loss: torch.Tensor | None = None
    _since: float = 0.0

    @property
    def batches(self) -> int:
        """Micro-batches done."""
        return len(self.done)

    @property
    def samples(self) -> int:
        """Samples in them: the rank's weight in the average."""
        return sum(span.size for span in self.done)

    @property
    def fill_ms(self) -> float:
        """By how much the first batch's wait exceeded the others' mean, milliseconds."""
        steady = self.wait_ms / (self.batches - 1) if self.batches > 1 else 0.0
        return max(0.0, self.first_wait_ms - steady)

    def waited(self, milliseconds: float) -> None:
        """Book the wait for the batch that comes next, and start its clock."""
        if self.done:
            self.wait_ms += milliseconds
        else:
            self.first_wait_ms += milliseconds
        self._since = time.perf_counter()

    def finished(self, span: Span) -> None:
        """Book a batch as trained."""
        self.compute_ms += (time.perf_counter() - self._since) * 1000.0
        self.done.append(span)

    def report(self, loss: torch.Tensor, samples: int) -> None:
        """Add a batch's mean loss, times its samples, on its own device and without waiting for it."""
        part = loss.detach().float() * samples
        self._loss = part if self._loss is None else self._loss + part

    def loss_sum(self) -> float:
        """Sum of the loss over the samples done; 0 when there is none or it is not finite. Waits for the device."""
        value = float(self._loss) if self._loss is not None else 0.0
        return value if math.isfinite(value) else 0.0

    def tail(
        self,
        uid: str,
        *,
        finite: bool,
        reduce_ms: float,
        divergence: float,
        formed_epoch: int,
        flags: Flag,
        digest: int,
        lr: float = 0.0,
    ) -> RankTail:
        """This rank's slots of the tail; without ``finite``, its batches count for nothing."""
        return RankTail(
            uid=uid,
            batches=self.batches if finite else 0,
            samples=self.samples if finite else 0,
            compute_ms=self.compute_ms,
            wait_ms=self.wait_ms,
            fill_ms=self.fill_ms,
            reduce_ms=reduce_ms,
            loss_sum=self.loss_sum() if finite else 0.0,
            divergence=divergence,
            formed_epoch=formed_epoch,
            flags=flags,
            digest=digest,
            lr=lr,
        )

    def is_prefix_of(self, lease: list[Span]) -> bool:
        """Whether a lease still begins with the batches that were done."""
        return self.done == lease[: len(self.done)]
