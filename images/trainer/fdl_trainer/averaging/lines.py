"""Many tensors as one: into a flat buffer and back by operations whose number does not grow with theirs.

On a device the cost of an operation over a list of tensors is the host's: it looks at each tensor, and launches a
kernel for every few dozen. Joining pieces of memory and splitting them is what torch does with the least of both.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

_ONE_KERNEL = 64
"""Tensors that an operation over a list copies by one kernel. Splitting has a table of addresses sent first."""


class Lines:
    """Tensors of one device, each seen as a line of memory where it is one.

    Those that are not (another memory format, another type than the flat buffers', a subclass) are copied by an
    operation over the list.

    Args:
        tensors: these; a line is memory of theirs and not a copy.
        dtype: of the flat buffers.
        joined: False copies by operations over the list in any case, which a processor does best.
    """

    def __init__(self, tensors: Sequence[Tensor], dtype: torch.dtype, *, joined: bool = True) -> None:
        self._tensors = list(tensors)
        self._joined = joined
        self._sizes = [tensor.numel() for tensor in tensors]
        self._dtype = dtype
        self._places = self._look()
        self._lines = self._take()

    def renew(self) -> bool:
        """Look whether a tensor's memory is elsewhere now (``tensor.data = ...``, as ``model.to`` does it).

        Returns:
            Whether one was: what was gathered before is not what they hold.
        """
        places = self._look()
        if places == self._places:
            return False
        self._places, self._lines = places, self._take()
        return True

    def gather(self, flat: Tensor, views: list[Tensor]) -> None:
        """Copy the tensors into a flat buffer.

        Args:
            flat: on their device, shape ``[elements]``.
            views: the same, cut into their shapes.
        """
        if self._lines is None:
            torch._foreach_copy_(views, self._tensors)
        else:
            torch.cat(self._lines, out=flat)

    def scatter(self, flat: Tensor, views: list[Tensor]) -> None:
        """Inverse of :meth:`gather`, into the tensors."""
        if self._lines is None or len(self._lines) <= _ONE_KERNEL:
            torch._foreach_copy_(self._tensors, views)
        else:
            torch.split_with_sizes_copy(flat, self._sizes, out=self._lines)

    def _look(self) -> list[int]:
        if not self._joined or not all(map(_is_plain, self._tensors)):
            return []
        return list(map(Tensor.data_ptr, self._tensors))

    def _take(self) -> list[Tensor] | None:
        usual = bool(self._places) and all(
            tensor.dtype is self._dtype and tensor.is_contiguous() and tensor.numel() for tensor in self._tensors
        )
        return [tensor.detach().view(-1) for tensor in self._tensors] if usual else None


def _is_plain(tensor: Tensor) -> bool:
    """Whether it is memory itself, and no subclass that stands for something else (a sharded tensor)."""
    return type(tensor) in (Tensor, nn.Parameter)
