"""A model's committed state, and its ways to the live model, other ranks and checkpoints.

How a window's work goes into it is :mod:`fdl_trainer.averaging.state`.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fdl_trainer.averaging import integers
from fdl_trainer.averaging.live import LiveModel, elements, saved_names, views
from fdl_trainer.averaging.settings import Averaging
from fdl_trainer.averaging.wire import Layout, Parts


class Committed:
    """A model's averaged tensors and their committed values.

    A new committed state is built in a second buffer, and only then do the two change places.

    Args:
        model: written to in place, so that optimizers, compiled graphs and hooks keep their references.
        averaging: how the run averages.
        device: where the flat buffers live: the model's device, or the CPU (pinned) for a group that reduces there.
            The model's when None.

    Raises:
        UnsupportedModelError: the model holds something that cannot be averaged.
    """

    def __init__(self, model: nn.Module, averaging: Averaging, device: torch.device | None) -> None:
        self.averaging = averaging
        self._model = LiveModel(model, device)
        self._saved_as = saved_names(model)
        inventory = self._model.inventory
        self.layout = Layout(
            parameters=elements(inventory.parameters),
            buffers=elements(inventory.buffers),
            moments=elements(inventory.means),
            counters=elements(inventory.counters),
            integers=elements(inventory.integers),
            momentum=elements(inventory.parameters) if self.averaging.outer.has_state else 0,
        )
        self._committed, self._next = self._new_buffer(), self._new_buffer()
        self._views = {id(parts): self._model.views(parts.floating) for parts in (self._committed, self._next)}

    @property
    def device(self) -> torch.device:
        """Where the flat buffers live."""
        return self._model.device

    @property
    def numel(self) -> int:
        """Elements of a committed buffer."""
        return self.layout.committed

    @property
    def committed(self) -> Tensor:
        """The committed buffer, shape ``[numel]``. It stays as it is until the second window from now."""
        return self._committed.flat

    def divergence(self) -> float:
        """How far this rank's model was from the average at the last commit, relative to the average's norm."""
        return self._model.distance()

    @property
    def parameters(self) -> list[Tensor]:
        """The trained parameters, in the order of the flat buffers."""
        return list(self._model.inventory.parameters.values())

    @torch.no_grad()
    def capture(self) -> None:
        """Take the live model as the committed state (at the start and after a checkpoint was loaded)."""
        self._model.refresh()
        self._model.collect(self._next.floating, self._views_of(self._next))
        integers.encode(self._model.numbers(), self._next.lanes)
        self._next.momentum.copy_(self._committed.momentum)
        self._swap()

    # --- other ranks' states ----------------------------------------------------------------------------

    @torch.no_grad()
    def gift(self) -> Tensor:
        """What a rank without the state is given: the committed buffer, and the frozen parameters behind it."""
        frozen = self._model.inventory.frozen.values()
        if not frozen:
            return self.committed
        flat = [tensor.reshape(-1).to(self.device, self.committed.dtype) for tensor in frozen]
        return torch.cat([self.committed, *flat])

    @torch.no_grad()
    def adopt(self, gift: Tensor, *, delta: bool = False, alpha: float = 1.0) -> None:
        """Take another rank's :meth:`gift`, and bring it into the live model.

        Args:
            gift: theirs.
            delta: add ``alpha * (committed - snapshot)`` to the live model instead of overwriting it, for a rank that
                has trained on since it sent its part of that commit.
            alpha: share of the correction.
        """
        self._next.flat.copy_(gift[: self.numel])
        frozen = list(self._model.inventory.frozen.values())
        for tensor, given in zip(frozen, views(gift[self.numel :], frozen), strict=True):
            tensor.copy_(given)
        self._swap()
        self._model.forget_distance()
        if delta:
            committed = self._committed
            numbers = integers.decode(committed.lanes)
            self._model.correct(committed.floating, self._views_of(committed), numbers, alpha)
        else:
            self.apply()
        self._model.forget()

    @torch.no_grad()
    def apply(self) -> None:
        """Copy the committed state into the live model."""
        committed = self._committed
        self._model.put(committed.floating, self._views_of(committed), integers.decode(committed.lanes))

    # --- checkpoints ------------------------------------------------------------------------------------

    @torch.no_grad()
    def tensors(self) -> dict[str, Tensor]:
        """A copy of the committed state by the keys of the model's state dict, in the model's dtypes, on the CPU."""
        inventory = self._model.inventory
        numbers = views(integers.decode(self._committed.lanes), list(inventory.whole.values()))
        values: dict[str, Tensor] = {
            **dict(zip(inventory.floating, self._views_of(self._committed), strict=True)),
            **dict(zip(inventory.whole, numbers, strict=True)),
            **inventory.frozen,
        }
        like = {**inventory.floating, **inventory.whole, **inventory.frozen}
        return {
            key: values[name].detach().to("cpu", like[name].dtype, copy=True) for key, name in self._saved_as.items()
        }

    @torch.no_grad()
    def outer_tensors(self) -> dict[str, Tensor]:
        """A copy of the outer optimizer's state by parameter, on the CPU; empty without one."""
        return {name: view.to("cpu", copy=True) for name, view in self._momenta().items()}

    @torch.no_grad()
    def load_outer(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Take the outer optimizer's state from a checkpoint, after :meth:`capture`.

        Returns:
            Parameters without one there; theirs starts from zero.
        """
        momenta = self._momenta()
        known = {
            name: tensors[name]
            for name, view in momenta.items()
            if name in tensors and tensors[name].shape == view.shape
        }
        for name, saved in known.items():
            momenta[name].copy_(saved)
        return [name for name in momenta if name not in known]

    def _momenta(self) -> dict[str, Tensor]:
        if not self.averaging.outer.has_state:
            return {}
        parameters = self._model.inventory.parameters
        return dict(zip(parameters, views(self._committed.momentum, list(parameters.values())), strict=True))

    # --- buffers ----------------------------------------------------------------------------------------

    def _new_buffer(self) -> Parts:
        dtype = self._model.inventory.dtype
        return self.layout.split(
            torch.zeros(self.numel, dtype=dtype, device=self.device, pin_memory=self._model.staged)
        )

    def _swap(self) -> None:
        self._committed, self._next = self._next, self._committed

    def _views_of(self, parts: Parts) -> list[Tensor]:
        return self._views[id(parts)]
