"""The numbers that an optimizer steps with, and how one rank's are lent to all for a step.

Options are what a parameter group has besides its parameters: the learning rate, momenta, dampening, eps, decays, and
whatever an optimizer of the user's keeps there. Every number among them counts, also those in tensors and in tuples
(``betas``). Switches (``nesterov``, ``fused``) and words do not: some say how a device computes, and none has a
schedule.
"""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fdl_trainer.averaging.inventory import ModelChangedError

SCHEDULED = (
    "alpha",
    "betas",
    "dampening",
    "eps",
    "lr",
    "lr_decay",
    "momentum",
    "momentum_decay",
    "rho",
    "weight_decay",
)
"""Options that only scripts and schedules change. Others may be the optimizer's own: some count their steps so."""
_ABSENT = 0x7FF8_0000_00FD_1000
"""Bits for "none": a NaN that no computation makes, so that a NaN of a script's stays one."""
_DIGEST_BITS = 48
"""What a double carries exactly."""

Loan = list[tuple[str, Any, list[float | None]]]
"""(name, the group's own, numbers lent) of each option."""


@dataclass(frozen=True)
class Options:
    """Which numbers a parameter group has.

    Args:
        widths: (name, how many numbers) of each option, by name.
    """

    widths: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, group: Mapping[str, Any]) -> "Options":
        """Those of a group as it is."""
        found = ((str(name), _items(value)) for name, value in group.items() if name != "params")
        return cls(tuple(sorted((name, len(items)) for name, items in found if items)))

    @property
    def count(self) -> int:
        """How many numbers."""
        return sum(width for _, width in self.widths)

    def __str__(self) -> str:
        return ", ".join(name for name, _ in self.widths) or "nothing"

    def read(self, group: Mapping[str, Any]) -> list[float | None]:
        """The numbers, in order; None for what the group lacks.

        Raises:
            ModelChangedError: an option has become a tuple of another length.
        """
        numbers: list[float | None] = []
        for name, width in self.widths:
            items = _items(group.get(name)) or [None] * width
            if len(items) != width:
                raise ModelChangedError(
                    f"The optimizer's option {name} has {len(items)} numbers and had {width} in session.setup: the "
                    "other ranks do not know of it. Give it its form in the optimizer factory."
                )
            numbers += [None if item is None else float(item) for item in items]
        return numbers

    def lend(self, group: dict[str, Any], numbers: Sequence[float | None]) -> Loan:
        """Put numbers into a group, as :meth:`read` gives them; where they are None its own stay."""
        loan: Loan = []
        place = 0
        for name, width in self.widths:
            given, place = numbers[place : place + width], place + width
            if name in group:
                own = group[name]
                group[name] = _with(own, given)
                loan.append((name, own, _numbers(group[name])))
        return loan


def give_back(group: dict[str, Any], loan: Loan) -> None:
    """Give a group its own options again.

    What the step has changed stays: the optimizer keeps its books there, and they are the same on all ranks.
    """
    for name, own, lent in loan:
        if encode(_numbers(group.get(name))) == encode(lent):
            group[name] = own


def digest(groups: Sequence[Options]) -> int:
    """Number below 2^48 and above 0 that tells whether two ranks have the same options."""
    text = repr([group.widths for group in groups]).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[: _DIGEST_BITS // 8], "big") or 1


def encode(numbers: Sequence[float | None]) -> list[int]:
    """Numbers bit for bit, as integers of 64 bits."""
    return [_ABSENT if number is None else struct.unpack("<q", struct.pack("<d", number))[0] for number in numbers]


def decode(bits: Sequence[int]) -> list[float | None]:
    """Inverse of :func:`encode`."""
    return [None if each == _ABSENT else struct.unpack("<d", struct.pack("<q", each))[0] for each in bits]


def _items(value: Any) -> list[Any]:
    """The numbers in an option, or scalars on any device; empty for one that has none."""
    items = list(value) if isinstance(value, tuple | list) else [value]
    numbers = [item for item in items if item is not None]
    return items if numbers and all(map(_is_number, numbers)) else []


def _is_number(item: Any) -> bool:
    if isinstance(item, Tensor):
        return item.numel() == 1 and item.dtype is not torch.bool and not item.is_complex()
    return isinstance(item, int | float) and not isinstance(item, bool)


def _numbers(value: Any) -> list[float | None]:
    return [None if item is None else float(item) for item in _items(value)]


def _with(own: Any, given: Sequence[float | None]) -> Any:
    """An option of the same form with other numbers."""
    if isinstance(own, tuple | list):
        items = [_like(item, number) for item, number in zip(own, given, strict=True)]
        return items if isinstance(own, list) else tuple(items)
    return _like(own, given[0])


def _like(own: Any, number: float | None) -> Any:
    if number is None:
        return own
    if isinstance(own, Tensor):  # it is one because the optimizer reads it on the device
        return torch.full_like(own, number)
    return int(number) if isinstance(own, int) and number.is_integer() else number
