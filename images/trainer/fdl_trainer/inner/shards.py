"""Between sharded tensors and whole ones. Every function here is called by all processes of a rank at once."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor

from fdl_api.reasons import Ended
from fdl_trainer.averaging.inventory import ModelChangedError
from fdl_trainer.ending import user_code
from fdl_trainer.inner.messages import Sharded


def require_sharded(model: nn.Module, size: int) -> None:
    """Refuse a model of which a part would be trained by each process for itself.

    Raises:
        RunEndedError: a parameter is not sharded over all processes.
    """
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, DTensor) or parameter.device_mesh.size() != size:
            raise user_code(
                Ended.SCRIPT_RAISED,
                f"The function shard of session.setup left the model's parameter {name} as it is, and the processes of "
                "a rank would each train their own: shard the whole model last, fully_shard(model, mesh=mesh).",
            )


class Shards:
    """A sharded model's tensors by name.

    Args:
        model: sharded.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._trained = {name: parameter.requires_grad for name, parameter in model.named_parameters()}

    def parameters(self, *, frozen: bool) -> dict[str, DTensor]:
        """The parameters, back in shards if a forward pass has left them whole.

        Args:
            frozen: those that were frozen at the start, too.

        Raises:
            ModelChangedError: they are others than at the start.
        """
        for module in self._model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        found = dict(self._model.named_parameters())
        changed = sorted(found.keys() ^ self._trained.keys())
        if changed:
            raise ModelChangedError(
                f"The model's {changed[0]} changed after session.setup (added or removed). Build the whole model in "
                "the model factory."
            )
        return {
            name: parameter
            for name, parameter in found.items()
            if isinstance(parameter, DTensor) and (frozen or self._trained[name])
        }

    def buffers(self) -> dict[str, Tensor]:
        """The buffers: whole, and each process's own between two pushes."""
        return dict(self._model.named_buffers())

    @torch.no_grad()
    def gather(self, into: Mapping[str, Tensor] | None) -> None:
        """Gather the trained parameters.

        Args:
            into: whole tensors that take the values; None where they are not kept.
        """
        for name, parameter in self.parameters(frozen=False).items():
            whole = parameter.full_tensor().detach()
            if into is not None:
                into[name].copy_(whole)

    @torch.no_grad()
    def scatter(self, source: Mapping[str, Tensor] | None, *, frozen: bool) -> None:
        """Hand out parameters; the leader's values count.

        Args:
            source: whole tensors; None on the other processes.
            frozen: the frozen parameters, too.
        """
        for name, parameter in self.parameters(frozen=frozen).items():
            given = None if source is None else source[name].detach()
            parameter.to_local().copy_(_part(given, parameter, parameter.dtype).to_local())

    @torch.no_grad()
    def put_buffers(self, values: Mapping[str, Tensor]) -> None:
        """Overwrite the buffers."""
        for name, buffer in self.buffers().items():
            buffer.copy_(values[name])


@torch.no_grad()
def whole_state(tree: Any, *, keep: bool) -> Any:
    """An optimizer's state dict with whole tensors on the CPU.

    Args:
        tree: with sharded tensors.
        keep: else they are only gathered, for another process, and are None here.
    """
    if isinstance(tree, DTensor):
        whole = tree.full_tensor()
        return whole.to("cpu", copy=True) if keep else None
    if isinstance(tree, dict):
        return {key: whole_state(item, keep=keep) for key, item in tree.items()}
    if isinstance(tree, list | tuple):
        items = [whole_state(item, keep=keep) for item in tree]
        return tuple(items) if isinstance(tree, tuple) else items
    return tree


def skeleton(state: Mapping[str, Any], parameters: Iterable[Tensor]) -> tuple[dict[str, Any], list[Tensor]]:
    """An optimizer's whole state dict without its large tensors, and these in order.

    Args:
        state: as ``torch.optim.Optimizer.state_dict`` gives it.
        parameters: of the optimizer, in its order.

    Raises:
        ValueError: the state is of another number of parameters.
    """
    own = list(parameters)
    count = sum(len(group["params"]) for group in state["param_groups"])
    if count != len(own):
        raise ValueError(f"the optimizer's state is of {count} parameters, and the optimizer has {len(own)}")
    large: list[Tensor] = []

    def without(value: Any, parameter: Tensor) -> Any:
        if not (isinstance(value, Tensor) and value.dim() and value.shape == parameter.shape):
            return value
        large.append(value)
        return Sharded(tuple(value.shape), value.dtype)

    states = {
        index: {name: without(value, own[index]) for name, value in entry.items()}
        for index, entry in state["state"].items()
    }
    return {**state, "state": states}, large


@torch.no_grad()
def sharded_state(bones: Mapping[str, Any], large: list[Tensor] | None, parameters: Iterable[Tensor]) -> dict[str, Any]:
    """Inverse of :func:`skeleton` on all processes: each gets its shards.

    Args:
        bones: with :class:`Sharded` in place of tensors.
        large: these; None on the processes that do not lead.
        parameters: of the optimizer, in its order; a tensor is sharded as its parameter.
    """
    own = list(parameters)
    given = iter(large) if large is not None else None

    def filled(value: Any, parameter: Tensor) -> Any:
        if not isinstance(value, Sharded):
            return value
        assert isinstance(parameter, DTensor)
        return _part(next(given) if given is not None else None, parameter, value.dtype)

    states = {
        index: {name: filled(value, own[index]) for name, value in entry.items()}
        for index, entry in bones["state"].items()
    }
    return {**bones, "state": states}


def _part(whole: Tensor | None, like: DTensor, dtype: torch.dtype) -> DTensor:
    """This process's part of the leader's tensor, sharded as another one."""
    device = torch.device(like.device_mesh.device_type)
    if whole is None:
        whole = torch.empty(like.shape, dtype=dtype, device=device)
    return distribute_tensor(whole.to(device, dtype), like.device_mesh, like.placements)
