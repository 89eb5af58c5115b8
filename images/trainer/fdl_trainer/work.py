"""What a rank has done in the window in work, and how long it took."""

import logging
import math
from dataclasses import dataclass, field
from typing import Any

import torch

from fdl_trainer.clocks import Clock, clock_here
from fdl_trainer.ledger import Span
from fdl_trainer.scaling import REASON
from fdl_trainer.tail import Flag, RankTail

log = logging.getLogger(__name__)

_UNREAD_LIMIT = 256
"""Batches whose marks are kept unread; beyond it the older half is read, long after the device has passed them."""


@dataclass
class WindowWork:
    """Batches of one rank in one uncommitted window.

    Times are marks of the rank's clock (:mod:`fdl_trainer.clocks`) until somebody asks for them, at the window's end.

    Attributes:
        done: the micro-batches trained, in the order of the lease.
        clock: marks and reads times.
    """

    done: list[Span] = field(default_factory=list)
    clock: Clock = field(default_factory=clock_here)
    _skipped: int = 0
    _overflowed: torch.Tensor | None = None
    """Samples whose steps a scaler left out on the device, not read yet."""
    _loss: torch.Tensor | None = None
    _reported: torch.Tensor | None = None
    _skips: bool = False
    _left_out: torch.Tensor | None = None
    _asked: Any = None
    _given: Any = None
    _unread: list[tuple[Any, Any, Any]] = field(default_factory=list)
    _compute_ms: float = 0.0
    _wait_ms: float = 0.0
    _first_wait_ms: float | None = None

    @property
    def batches(self) -> int:
        """Micro-batches done."""
        return len(self.done)

    @property
    def samples(self) -> int:
        """Samples in them that count: the rank's weight in the average. May wait for the device."""
        return sum(span.size for span in self.done) - self.skipped

    @property
    def skipped(self) -> int:
        """Samples in them that were trained to no use. May wait for the device."""
        if self._overflowed is not None:
            found, self._overflowed = int(self._overflowed), None
            self._skipped += found
            if found:
                log.info("%d samples of a window do not count: %s", found, REASON)
        return self._skipped

    @property
    def compute_ms(self) -> float:
        """Milliseconds in the script, from a batch's hand-over to the request for the next. Waits for the device."""
        self._read(0)
        return self._compute_ms

    @property
    def wait_ms(self) -> float:
        """Milliseconds of waiting for data, without the first batch of the window. Waits for the device."""
        self._read(0)
        return self._wait_ms

    @property
    def first_wait_ms(self) -> float:
        """The same of the first batch."""
        self._read(0)
        return self._first_wait_ms or 0.0

    @property
    def fill_ms(self) -> float:
        """By how much the first batch's wait exceeded the others' mean, milliseconds."""
        steady = self.wait_ms / (self.batches - 1) if self.batches > 1 else 0.0
        return max(0.0, self.first_wait_ms - steady)

    def asks(self) -> None:
        """The rank asks for its next batch."""
        self._asked = self.clock.mark()

    def given(self) -> None:
        """It has the batch, and begins with it."""
        self._given = self.clock.mark()

    def skip(self) -> None:
        """The batch in hand does not count."""
        self._skips = True

    def skip_if(self, left_out: torch.Tensor) -> None:
        """The batch in hand does not count if this is above zero, which is read at the window's end."""
        self._left_out = left_out

    def finished(self, span: Span, skipped: int = 0) -> None:
        """Book the batch as trained, ``skipped`` of its samples (or all, after :meth:`skip`) to no use."""
        self._skipped += span.size if self._skips else skipped
        if self._left_out is not None and not self._skips:
            self._book_overflow(self._left_out > 0, span.size - skipped)
        if self._reported is not None and not self._skips:
            self._loss = self._reported if self._loss is None else self._loss + self._reported
        self._reported, self._left_out, self._skips = None, None, False
        self._unread.append((self._asked, self._given, self.clock.mark()))
        self.done.append(span)
        if len(self._unread) > _UNREAD_LIMIT:
            self._read(_UNREAD_LIMIT // 2)

    def _book_overflow(self, overflowed: torch.Tensor, samples: int) -> None:
        lost = torch.where(overflowed, samples, 0)
        self._overflowed = lost if self._overflowed is None else self._overflowed + lost
        if self._reported is not None:
            self._reported = torch.where(overflowed, torch.zeros_like(self._reported), self._reported)

    def _read(self, keep: int) -> None:
        ready, self._unread = self._unread[: len(self._unread) - keep], self._unread[len(self._unread) - keep :]
        for asked, given, ended in ready:
            self._compute_ms += self.clock.milliseconds(given, ended)
            waited = self.clock.milliseconds(asked, given)
            if self._first_wait_ms is None:
                self._first_wait_ms = waited
            else:
                self._wait_ms += waited

    def report(self, loss: torch.Tensor, samples: int) -> None:
        """Add a batch's mean loss, times its samples, on its own device and without waiting for it."""
        part = loss.detach().float() * samples
        self._reported = part if self._reported is None else self._reported + part

    def loss_sum(self) -> float | None:
        """Sum of the loss over the samples done; None when none was reported or it is not finite.

        Waits for the device.
        """
        parts = [float(part) for part in (self._loss, self._reported) if part is not None]
        value = sum(parts)
        return value if parts and math.isfinite(value) else None

    def tail(
        self,
        uid: str,
        *,
        reduce_ms: float,
        divergence: float,
        formed_epoch: int,
        flags: Flag,
        digest: int,
        lr: float = 0.0,
    ) -> RankTail:
        """This rank's slots of the tail."""
        loss = self.loss_sum()
        return RankTail(
            uid=uid,
            batches=self.batches,
            samples=self.samples,
            skipped=self.skipped,
            compute_ms=self.compute_ms,
            wait_ms=self.wait_ms,
            fill_ms=self.fill_ms,
            reduce_ms=reduce_ms,
            loss_sum=loss or 0.0,
            divergence=divergence,
            formed_epoch=formed_epoch,
            flags=flags if loss is not None else flags | Flag.NO_LOSS,
            digest=digest,
            lr=lr,
        )

    def is_prefix_of(self, lease: list[Span]) -> bool:
        """Whether a lease still begins with the batches that were done."""
        return self.done == lease[: len(self.done)]
