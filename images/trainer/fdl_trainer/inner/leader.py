"""The leading process's side: what the run averages and keeps is whole, what it trains is sharded."""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from fdl_trainer.averaging import ModelState, Share, Wire
from fdl_trainer.averaging.settings import Averaging
from fdl_trainer.inner import messages
from fdl_trainer.inner.link import Link, together
from fdl_trainer.inner.shards import Shards, require_sharded, sharded_state, skeleton, whole_state
from fdl_trainer.job import Shard

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class Leader:
    """Moves the model between its whole copy in the host's memory and the shards.

    Args:
        link: to the other processes.
        shard: shards a model.

    Attributes:
        live: the sharded model, which is trained; there after :meth:`build`.
        optimizer: of it, likewise.
    """

    live: nn.Module
    optimizer: torch.optim.Optimizer

    def __init__(self, link: Link, shard: Shard) -> None:
        self.link = link
        self._shard = shard
        self._whole: dict[str, Tensor] = {}
        self._buffers: dict[str, Tensor] = {}
        self._shards: Shards | None = None

    def build(self, whole: nn.Module, optimizer: MakeOptimizer) -> torch.optim.Optimizer:
        """Make the sharded model and its optimizer.

        Args:
            whole: the model, in the host's memory, where it stays.
            optimizer: makes the optimizer of the sharded parameters.

        Returns:
            What stands for the optimizer where its whole state is meant.

        Raises:
            RunEndedError: a part of it is not sharded, or another process has gone.
        """
        self.link.form()
        self.live = sharded(copy.deepcopy(whole), self._shard, self.link)
        self.optimizer = optimizer(self.live.parameters())
        self._whole, self._buffers = dict(whole.named_parameters()), dict(whole.named_buffers())
        self._shards = Shards(self.live)
        return cast(torch.optim.Optimizer, WholeOptimizer(self))

    def state(
        self, model: nn.Module, averaging: Averaging, device: torch.device, optimizer: torch.optim.Optimizer
    ) -> ModelState:
        """The replicated state of the whole model; see :class:`fdl_trainer.averaging.ModelState`."""
        return SpannedState(self, model, averaging, device, optimizer)

    @torch.no_grad()
    def pull(self) -> None:
        """Bring what was trained into the whole model. Buffers are this process's own."""
        assert self._shards is not None
        self.link.send(messages.Pull())
        with together():
            self._shards.gather(self._whole)
        for name, buffer in self._shards.buffers().items():
            self._buffers[name].copy_(buffer)

    def push(self, *, frozen: bool = False) -> None:
        """Bring the whole model into the shards."""
        assert self._shards is not None
        self.link.send(messages.Push(frozen, self._buffers))
        with together():
            self._shards.scatter(self._whole, frozen=frozen)
        self._shards.put_buffers(self._buffers)

    def pull_optimizer(self) -> dict[str, Any]:
        """The optimizer's whole state dict, on the CPU."""
        self.link.send(messages.PullOptimizer())
        with together():
            state: dict[str, Any] = whole_state(self.optimizer.state_dict(), keep=True)
        return state

    def push_optimizer(self, state: dict[str, Any]) -> None:
        """Take a whole state dict.

        Raises:
            ValueError: it is not of such an optimizer.
        """
        bones, large = skeleton(state, parameters_of(self.optimizer))
        self.link.send(messages.PushOptimizer(bones))
        with together():
            parts = sharded_state(bones, large, parameters_of(self.optimizer))
        self.optimizer.load_state_dict(parts)

    def reset_optimizer(self) -> None:
        """Forget the optimizer's state."""
        self.link.send(messages.ResetOptimizer())
        self.optimizer.state.clear()


class _State:
    """The state of :class:`WholeOptimizer`, of which nothing but the end is needed."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader

    def clear(self) -> None:
        """Forget it."""
        self._leader.reset_optimizer()


class WholeOptimizer:
    """Stands for an optimizer in a :class:`fdl_trainer.replica.Replica`: its state dict is whole.

    So checkpoints, and what joiners are given, are those of a rank of one device.
    """

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self.state = _State(leader)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Of the optimizer that trains."""
        return self._leader.optimizer.param_groups

    def state_dict(self) -> dict[str, Any]:
        """Whole, on the CPU."""
        return self._leader.pull_optimizer()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Hand a whole one out."""
        self._leader.push_optimizer(state)


class SpannedState(ModelState):
    """The replicated state of a model whose trained tensors are shards: the whole copy is renewed before it is read,
    and what was written to it is handed out.

    Args:
        leader: moves between the two.
        model: the whole copy.
        averaging: see :class:`fdl_trainer.averaging.ModelState`, and so the others.
        device: likewise.
        optimizer: likewise.
    """

    def __init__(
        self,
        leader: Leader,
        model: nn.Module,
        averaging: Averaging,
        device: torch.device,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        super().__init__(model, averaging, device, optimizer)
        self._leader = leader

    def capture(self) -> None:
        """As there: at the start, what the whole copy holds counts."""
        super().capture()
        self._leader.push(frozen=True)

    def pack(self, wire: Wire, share: Share, *, keep_snapshot: bool = False, again: bool = False) -> None:
        """As there."""
        if not again and (share.samples or keep_snapshot):
            self._leader.pull()
        super().pack(wire, share, keep_snapshot=keep_snapshot, again=again)

    def commit(self, wire: Wire, shares: Sequence[Share], *, delta: bool = False, alpha: float = 1.0) -> None:
        """As there; a correction is added to what the shards hold by now."""
        if delta:
            self._leader.pull()
        super().commit(wire, shares, delta=delta, alpha=alpha)
        self._leader.push()

    def adopt(self, gift: Tensor, *, delta: bool = False, alpha: float = 1.0) -> None:
        """As there."""
        if delta:
            self._leader.pull()
        super().adopt(gift, delta=delta, alpha=alpha)
        self._leader.push(frozen=True)

    def apply(self) -> None:
        """As there."""
        super().apply()
        self._leader.push()


def sharded(model: nn.Module, shard: Shard, link: Link) -> nn.Module:
    """Shard a model in place, on the device of this process.

    Raises:
        RunEndedError: a part of it is not sharded.
    """
    shard(model, link.mesh)
    require_sharded(model, link.place.size)
    for module in model.modules():  # parameters have been moved with their shards
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(link.device)
    return model


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """An optimizer's parameters in the order of its state dict."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
