"""The sessions of a rank that spans several devices: of the process that leads, and of those that follow."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from fdl_api import wire
from fdl_api.reasons import Ended
from fdl_trainer.assembly import assemble
from fdl_trainer.conclusion import Evaluation
from fdl_trainer.ending import user_code
from fdl_trainer.fit import Loss, part, require_function
from fdl_trainer.inner import messages
from fdl_trainer.inner.leader import Leader, parameters_of, sharded
from fdl_trainer.inner.link import Link, together
from fdl_trainer.inner.messages import Slice
from fdl_trainer.inner.place import Place, problem
from fdl_trainer.inner.shards import Shards, sharded_state, whole_state
from fdl_trainer.job import Job, Shard
from fdl_trainer.loader import Batch
from fdl_trainer.loader.trees import map_tensors, to_device
from fdl_trainer.loop import Loop
from fdl_trainer.member import Member
from fdl_trainer.scaling import optimizer_step
from fdl_trainer.session import Session


def session_of(member: Member, place: Place) -> Session:
    """The session of a process of such a rank."""
    return LeadingSession(member, place) if place.rank == 0 else FollowingSession(member, place)


class _SpanningSession(Session):
    """What leading and following processes have in common."""

    def __init__(self, member: Member, place: Place) -> None:
        super().__init__(member)
        self._config = member.config
        self._link = Link(place, self.device)
        self._slice: Slice | None = None

    def _shard_of(self, job: Job) -> Shard:
        """The script's function, or the same refusal in all processes."""
        why = problem(self._config.mode, self._config.elche)
        if job.shard is None or why:
            raise user_code(Ended.SCRIPT_RAISED, why or _NO_SHARD)
        return job.shard

    def _take(self, given: Slice) -> Any:
        """Begin with a slice; returns its data on the device."""
        self._slice = replace(given, data=to_device(given.data, self.device))
        return self._slice.data

    def step(
        self,
        loss: Loss,
        *,
        clip_norm: float | None = None,
        micro_batch: int | None = None,
        scaler: torch.amp.GradScaler | None = None,
    ) -> torch.Tensor:
        """As there, on this process's slice; gradients are averaged between the processes by FSDP2.

        Neither parts of a slice nor a gradient scaler: processes would differ in how often they communicate, or step.

        Returns:
            The mean loss of the whole batch.
        """
        if self._slice is None:
            raise user_code(Ended.SCRIPT_RAISED, "session.step was called outside of the loop over the session.")
        require_function(loss)
        if micro_batch is not None or scaler is not None:
            raise user_code(
                Ended.SCRIPT_RAISED,
                "session.step was given micro_batch or scaler, and the rank spans the devices of its member: use "
                "smaller batches, and bf16, which needs no scaler.",
            )
        self.optimizer.zero_grad()
        value = loss(self._slice.data)
        torch.autograd.backward(value * self._slice.weight)
        optimizer_step(self.model, self.optimizer, clip_norm=clip_norm)
        self._taken += 1
        mean = self._link.mean(value * self._slice.weight)
        self.report(mean)
        return mean

    def skip(self, reason: str) -> None:
        """Refused: the processes of a rank could disagree about it.

        Raises:
            RunEndedError: always.
        """
        raise user_code(
            Ended.SCRIPT_RAISED,
            f'session.skip("{reason[:80]}") was called, and the rank spans the devices of its member, whose processes '
            "each see a slice of the batch: leave bad samples out by on_sample_error of session.setup.",
        )

    def _require_one_step(self) -> None:
        if self._taken != 1:
            raise user_code(
                Ended.SCRIPT_RAISED,
                f"The script gave a batch {self._taken} times to session.step, and the rank spans the devices of its "
                "member: call session.step(loss) once for each batch, which weighs the slices of the processes.",
            )


class LeadingSession(_SpanningSession):
    """The rank itself, to the run. Hands out slices of its batches."""

    def __init__(self, member: Member, place: Place) -> None:
        super().__init__(member, place)
        self._leader: Leader | None = None

    def _assemble(self, job: Job) -> tuple[Loop, nn.Module]:
        leader = self._leader = Leader(self._link, self._shard_of(job))
        loop, _ = assemble(job, self._member, self.device, None, leader)
        self._link.send(messages.Ready(torch.initial_seed()))
        return loop, leader.live

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the shards."""
        return self._need(self._leader).optimizer

    def __iter__(self) -> Iterator[Any]:
        """The leading process's slices of the rank's batches."""
        yield from super().__iter__()
        self._slice = None
        self._link.send(messages.LoopEnd())

    @property
    def _steps_once(self) -> bool:
        return True

    def _hand_out(self, batch: Batch) -> Any:
        progress, samples, rank, ranks = self.progress, self.samples, self.rank, self.world_size
        slices = [
            Slice(data, weight, progress, samples, rank, ranks)
            for data, weight in _slices(batch.data, batch.samples, self._link.place.size)
        ]
        self._link.send(slices)
        return self._take(slices[0])

    def _evaluate(self, loop: Loop, evaluation: Evaluation) -> None:
        self._link.send(messages.Evaluate())
        super()._evaluate(loop, evaluation)


class FollowingSession(_SpanningSession):
    """Another process of the rank: it trains its slices, and does what the leader says until the agent ends it.

    The script makes its dataset here, too, and nothing reads it.
    """

    def __init__(self, member: Member, place: Place) -> None:
        super().__init__(member, place)
        self._shards: Shards | None = None

    def _begin(self, job: Job) -> None:
        shard = self._shard_of(job)
        torch.manual_seed(job.seed)
        model = job.model()
        self._link.form()
        self._model = sharded(model, shard, self._link)
        self._optimizer = job.optimizer(self._model.parameters())
        self._shards = Shards(self._model)
        ready = self._serve(messages.Ready)
        assert isinstance(ready, messages.Ready)
        torch.manual_seed(ready.seed + self._link.place.rank)

    @property
    def _told(self) -> Slice:
        return self._slice or _BEFORE

    @property
    def progress(self) -> float:
        """As the leader said with the batch in hand."""
        return self._told.progress

    @property
    def samples(self) -> float:
        """Likewise."""
        return self._told.samples

    @property
    def rank(self) -> int:
        """Place of the member in its epoch, likewise."""
        return self._told.rank

    @property
    def world_size(self) -> int:
        """Ranks of the epoch, likewise."""
        return self._told.world_size

    @property
    def is_writer(self) -> bool:
        """Never: files are the leading process's."""
        return False

    def __iter__(self) -> Iterator[Any]:
        """This process's slices of the rank's batches."""
        self.trained = True
        while isinstance(message := self._serve(Slice, messages.LoopEnd), Slice):
            self._taken = 0
            yield self._take(message)
            self._require_one_step()
        self._slice = None
        self.complete = True

    def report(self, loss: torch.Tensor) -> None:
        """Nothing: the leader reports the mean of all processes."""

    def evaluate(self, evaluation: Evaluation) -> None:
        """Keep it for when the leader evaluates."""
        self._evaluation = evaluation

    def ask_to_leave(self) -> bool:
        """The leader decides when the batch is done; this process goes with it."""
        return True

    @property
    def last_window(self) -> int | None:
        """Only the leader knows."""
        return None

    def finish(self) -> wire.Done:
        """Serve the leader until the agent ends this process.

        Raises:
            RunEndedError: the leader has gone, or the script left the loop too early.
        """
        if self._model is not None and self.complete:
            self._serve()
        raise user_code(
            Ended.SCRIPT_EXITED,
            "The script ended before the run was complete: it must call session.setup and let the loop over the "
            "session end by itself.",
        )

    def close(self) -> None:
        """Nothing to close."""

    def _serve(self, *until: type[messages.Message]) -> messages.Message:
        """Do what the leader says; returns its first message of these kinds."""
        while True:
            message = self._link.receive()
            if until and isinstance(message, until):
                return message
            self._do(message)

    def _do(self, message: messages.Message) -> None:
        shards, optimizer = self._need(self._shards), self.optimizer
        match message:
            case messages.Pull():
                with together():
                    shards.gather(None)
            case messages.Push():
                with together():
                    shards.scatter(None, frozen=message.frozen)
                shards.put_buffers(message.buffers)
            case messages.PullOptimizer():
                with together():
                    whole_state(optimizer.state_dict(), keep=False)
            case messages.PushOptimizer():
                with together():
                    state = sharded_state(message.skeleton, None, parameters_of(optimizer))
                optimizer.load_state_dict(state)
            case messages.ResetOptimizer():
                optimizer.state.clear()
            case messages.Evaluate():
                self._figures(self._need(self._evaluation))
            case _:
                raise AssertionError(f"unexpected message {message}")


def _slices(data: Any, samples: int, size: int) -> Iterator[tuple[Any, float]]:
    """A batch in parts for so many processes, as equal as can be, with the weights of their mean losses.

    FSDP2 averages gradients over processes: ``mean_i(w_i g_i) = sum_i(n_i g_i) / n`` for ``w_i = n_i size / n``.
    """
    start = 0
    for i in range(size):
        count = samples // size + (i < samples % size)
        first = min(start, samples - 1)
        try:
            cut = part(data, first, first + max(count, 1), samples)
        except ValueError as error:
            raise user_code(
                Ended.SCRIPT_RAISED,
                f"The rank spans the devices of its member, and a batch of {samples} samples cannot be cut into "
                f"slices for them: {error}. Have collate put the samples first.",
            ) from error
        yield map_tensors(torch.clone, cut), count * size / samples
        start += count


_BEFORE = Slice(None, 0.0, progress=0.0, samples=0.0, rank=0, world_size=1)
"""What holds between batches."""
_NO_SHARD = (
    "spec.cohorts[].rankSpans is member, and session.setup has no shard: give it shard=lambda model, mesh: "
    "fully_shard(model, mesh=mesh), or set rankSpans to device."
)
