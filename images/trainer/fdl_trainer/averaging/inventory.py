"""Which of a model's tensors are averaged, in which order, and by which rule."""

from dataclasses import dataclass, field
from itertools import chain
from operator import is_

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fdl_trainer.averaging import integers, moments


class UnsupportedModelError(ValueError):
    """The model holds something that cannot be averaged; the message says what and what to do."""


class ModelChangedError(ValueError):
    """The model is not the one that was set up; the message names the tensor."""


@dataclass
class Inventory:
    """A model's tensors by rule. Built once; the tensors are the model's own.

    Attributes:
        parameters: trained parameters.
        buffers: floating buffers other than statistics.
        means: running means, and in the same order
        variances: running variances.
        counters: integer buffers of which the largest counts.
        integers: other integer and bool buffers.
        frozen: parameters that were frozen at the start: the same everywhere, so they are not sent.
    """

    parameters: dict[str, Tensor] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    means: dict[str, Tensor] = field(default_factory=dict)
    variances: dict[str, Tensor] = field(default_factory=dict)
    counters: dict[str, Tensor] = field(default_factory=dict)
    integers: dict[str, Tensor] = field(default_factory=dict)
    frozen: dict[str, Tensor] = field(default_factory=dict)

    @property
    def floating(self) -> dict[str, Tensor]:
        """What travels in every window, in the order of the flat buffer."""
        return {**self.parameters, **self.buffers, **self.means, **self.variances}

    @property
    def whole(self) -> dict[str, Tensor]:
        """Integer buffers in the order of their lanes."""
        return {**self.counters, **self.integers}

    @property
    def dtype(self) -> torch.dtype:
        """Of the flat buffers: fp64 when the model has fp64 tensors, which fp32 would cut off, else fp32."""
        wide = any(tensor.dtype is torch.float64 for tensor in [*self.floating.values(), *self.frozen.values()])
        return torch.float64 if wide else torch.float32


def take(model: nn.Module) -> Inventory:
    """The inventory of a model.

    Tied tensors count once. Parameters of narrow types are averaged in fp32.

    Raises:
        UnsupportedModelError: a tensor is complex, sparse, quantised, or has no shape yet, or there is none to train.
    """
    result = Inventory()
    for name, parameter in model.named_parameters():
        _check(name, parameter)
        if not parameter.is_floating_point():
            result.integers[name] = parameter
        else:
            (result.parameters if parameter.requires_grad else result.frozen)[name] = parameter
    buffers = dict(model.named_buffers())
    for name, buffer in buffers.items():
        _check(name, buffer)
        variance = moments.partner(name)
        if not buffer.is_floating_point():
            (result.counters if integers.is_counter(name, buffer.dtype) else result.integers)[name] = buffer
        elif variance is not None and variance in buffers and buffers[variance].shape == buffer.shape:
            result.means[name], result.variances[variance] = buffer, buffers[variance]
        else:
            result.buffers[name] = buffer
    for name in result.variances:
        result.buffers.pop(name, None)
    if not result.floating:
        raise UnsupportedModelError(
            "The model has no parameter to train: give session.setup a model whose parameters require gradients."
        )
    return result


def _check(name: str, tensor: Tensor) -> None:
    if is_lazy(tensor):
        raise UnsupportedModelError(
            f"The model's tensor {name} has no shape yet (a lazy module): run one batch through the model in the model "
            "factory before giving it to session.setup."
        )
    if tensor.is_complex():
        raise UnsupportedModelError(
            f"The model's tensor {name} is complex: fdl averages real ones. Keep it as two real tensors "
            "(torch.view_as_real)."
        )
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise UnsupportedModelError(
            f"The model's tensor {name} is {'quantised' if tensor.is_quantized else tensor.layout}: fdl averages dense "
            "tensors. Make it dense; gradients may be sparse."
        )


class Watch:
    """Notices that a model's tensors were added to, replaced or unfrozen after the start.

    Looks at the dictionaries of the modules only, so that it costs microseconds a window.
    """

    def __init__(self, model: nn.Module, inventory: Inventory) -> None:
        self._model = model
        self._frozen = inventory.frozen
        self._modules = list(model.named_modules())
        self._seen = [(_tensors(module), len(module._modules)) for _, module in self._modules]

    def check(self) -> dict[str, Tensor]:
        """Compare with the model that was set up.

        Returns:
            Buffers that a module has replaced by others of the same form, by name: these count from now on.

        Raises:
            ModelChangedError: it is another model.
        """
        replaced: dict[str, Tensor] = {}
        for (path, module), (tensors, children) in zip(self._modules, self._seen, strict=True):
            if _unchanged(module, tensors, children):
                continue
            now = _tensors(module)
            if now.keys() != tensors.keys() or len(module._modules) != children:
                names = sorted(now.keys() ^ tensors.keys()) or ["modules"]
                raise ModelChangedError(
                    f"The model's {_join(path, names[0])} changed after session.setup (added or removed): the other "
                    "ranks do not know it. Build the whole model in the model factory."
                )
            for name, tensor in now.items():
                before = tensors[name]
                if tensor is before:
                    continue
                if isinstance(tensor, nn.Parameter) or not _alike(tensor, before):
                    raise ModelChangedError(
                        f"The model's tensor {_join(path, name)} was replaced by another one after session.setup. "
                        "Change it in place (with torch.no_grad(): tensor.copy_(...))."
                    )
                assert tensor is not None
                replaced[_join(path, name)] = tensors[name] = tensor
        for name, parameter in self._frozen.items():
            if parameter.requires_grad:
                raise ModelChangedError(
                    f"The model's parameter {name} was frozen in session.setup and is trained now, but frozen ones "
                    "are not averaged. Leave it trainable in the model factory and freeze it after session.setup."
                )
        return replaced


def _unchanged(module: nn.Module, tensors: dict[str, Tensor | None], children: int) -> bool:
    """Whether a module has the very tensors that it had. Without a line of Python a tensor: models have thousands."""
    parameters, buffers = module._parameters, module._buffers
    return (
        len(module._modules) == children
        and [*parameters, *buffers] == list(tensors)
        and all(map(is_, chain(parameters.values(), buffers.values()), tensors.values()))
    )


def _alike(tensor: Tensor | None, before: Tensor | None) -> bool:
    if tensor is None or before is None:
        return False
    return (tensor.shape, tensor.dtype, tensor.device) == (before.shape, before.dtype, before.device)


def _tensors(module: nn.Module) -> dict[str, Tensor | None]:
    return {**module._parameters, **module._buffers}


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
