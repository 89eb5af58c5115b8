"""The state that all ranks hold alike, and how it moves: by a committed window or by another rank's gift.

:class:`Replica` joins the numbers (:class:`fdl_trainer.agreed.Control`) with the tensors
(:class:`fdl_trainer.averaging.ModelState`) and this rank's optimizer, so that they never move apart.
"""

import json
import logging
from collections.abc import Sequence
from typing import Any

import torch

from fdl_api.reasons import Ended
from fdl_trainer import agreed, elche, exchange, plan, tail, treefile
from fdl_trainer.agreed import Control
from fdl_trainer.averaging import ModelState, Share, Slots, Wire
from fdl_trainer.averaging.options import SCHEDULED
from fdl_trainer.averaging.slots import count_of
from fdl_trainer.course import Course
from fdl_trainer.elche import NOWHERE, Seating
from fdl_trainer.ending import user_code
from fdl_trainer.exchange import Decision, Held
from fdl_trainer.groups import Group, Interrupt
from fdl_trainer.plan import PlanSpec
from fdl_trainer.tail import Tail

log = logging.getLogger(__name__)


class Replica:
    """One rank's copy of the training's state.

    Args:
        model: the averaged tensors.
        optimizer: the script's optimizer; its state stays local, unless it is averaged, and goes to joiners.
        control: the state to start from: fresh, or from a checkpoint.
        spec: the run's configuration.
        writable: this rank can write checkpoints.
        attempt: attempt of the run.
        origin: attempt and epoch of the checkpoint that ``control`` is from; zeros without one.

    Attributes:
        live: the state is that of the running training.
        entered: newest epoch that the control state knows the members of.
        stopped: the run stopped at the last committed window.
        writer: rank of the present epoch that writes checkpoints, or None.
    """

    def __init__(
        self,
        model: ModelState,
        optimizer: torch.optim.Optimizer,
        control: Control,
        spec: PlanSpec,
        *,
        writable: bool,
        attempt: int = 1,
        origin: tuple[int, int] = (0, 0),
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.slots = Slots(model.parameters, optimizer, model.averaging.weighing)
        self.control = control
        self.spec = spec
        self.live = False
        self.entered = 0
        self.stopped = False
        self.writer: int | None = None
        self.writable = writable
        self._attempt = attempt
        self._origin = origin

    @property
    def divergence(self) -> float:
        """Distance to the average at the last commit, for the next tail."""
        return self.model.divergence()

    def held(self) -> Held:
        """What this rank holds, for the exchange."""
        attempt, epoch = max(self._origin, (self._attempt, self.entered)) if self.entered else self._origin
        return Held(
            live=self.live,
            window=self.control.window,
            entered=self.entered,
            digest=agreed.digest(self.control),
            stopped=self.stopped,
            writable=self.writable,
            attempt=attempt,
            epoch=epoch,
            options=self.model.gradients.digest if self.model.gradients is not None else 0,
        )

    def new_wire(self, rank: int, ranks: int) -> Wire:
        """A fresh wire buffer of an epoch, with room for what the next windows average."""
        room = self.slots.room(count_of(self.control.slots)) if self.spec.state_every and ranks > 1 else 0
        if self.model.gradients is not None:
            room = self.model.gradients.room(ranks)
        return self.model.new_wire(rank, ranks, ranks * tail.TAIL_SLOTS, room)

    def pack(self, wire: Wire, share: Share, *, keep_snapshot: bool = False, again: bool = False) -> Wire:
        """Write this rank's contribution to the window in work; the tail is left to be written.

        Args:
            wire: the epoch's.
            share: what this rank did in the window.
            keep_snapshot: see :meth:`fdl_trainer.averaging.ModelState.pack`.
            again: likewise.

        Returns:
            The buffer with the contribution: another one, if the given one had no room for all of it.

        Raises:
            ModelChangedError: the model is not the one that was set up.
        """
        mark = self._averaged_slots(wire)
        extra = self.slots.room(count_of(mark))
        if self.model.gradients is not None:
            extra = wire.room
        if extra > wire.room:
            wire = self.new_wire(wire.rank, wire.ranks)
        wire.use(extra)
        self.model.pack(wire, share, keep_snapshot=keep_snapshot, again=again)
        if mark:
            self.slots.pack(wire.extra, mark, share, wire.finite)
        return wire

    def _averaged_slots(self, wire: Wire) -> int:
        """The optimizer's tensors that go with the window in work; none where there is nobody to average with."""
        return plan.averaged_slots(self.control, self.spec) if wire.ranks > 1 else 0

    def held_slots(self) -> int:
        """The optimizer's tensors that this rank could average, for the tail."""
        return self.slots.mark if self.spec.state_every else 0

    def commit(self, wire: Wire, reduced: Tail, *, delta: bool = False, alpha: float = 1.0) -> bool:
        """Advance by a window whose reduce succeeded.

        Args:
            wire: the reduced wire buffer.
            reduced: the reduced tail.
            delta: see :meth:`fdl_trainer.averaging.ModelState.commit`.
            alpha: likewise.

        Returns:
            Whether the window counts; see :func:`fdl_trainer.plan.advance`. The model stays where nobody has samples.

        Raises:
            ValueError: the tail contradicts this rank's books; nothing has changed then.
            RunEndedError: see :meth:`fdl_trainer.averaging.ModelState.commit`.
        """
        control = plan.advance(self.control, reduced, self.spec)
        if control is self.control:
            return False
        mark = self._averaged_slots(wire)
        if not reduced.samples:
            self.control = control
            self.model.forget_gradients()
            return True
        shares = [Share(rank.batches, rank.samples) for rank in reduced.ranks]
        self.model.commit(wire, shares, delta=delta, alpha=alpha)
        self.control = control
        if mark:
            self.slots.take(wire.extra, mark)
        return True

    def synchronise(
        self,
        group: Group,
        epoch: int,
        members: Sequence[str],
        interrupt: Interrupt,
        course: Course,
        *,
        seating: Seating = NOWHERE,
    ) -> list[int]:
        """Do the exchange at the start of an epoch and enter it.

        Everything is received before anything is changed, so that a failure on the way leaves this rank as it was.

        Args:
            group: the epoch's group.
            epoch: its number.
            members: UIDs of its ranks, in order.
            interrupt: see :mod:`fdl_trainer.groups`.
            course: this rank's work; what the epoch makes void is dropped from it and from the model.
            seating: what the epoch's message says of its ranks.

        Returns:
            The windows whose batches this rank gave up and may be handed again.

        Raises:
            RunEndedError: this rank's optimizer cannot step with the others'.
        """
        alike = self.model.gradients is not None  # all optimizers take the same steps
        decision = exchange.exchange_rows(group, self.held(), interrupt, with_optimizer=alike)
        self._require_same_options(decision, group.rank)
        donor, mine = decision.donor, group.rank == decision.donor
        flat = exchange.give_tensor(group, donor, self.model.gift(), interrupt) if decision.model else None
        control: Control | None = None
        if decision.control:
            text = json.dumps(agreed.to_json(self.control)).encode() if mine else None
            control = agreed.from_json(json.loads(exchange.give_bytes(group, donor, text, interrupt)))
        optimizer: bytes | None = None
        if decision.optimizer:
            packed = treefile.pack(self.optimizer.state_dict()) if mine else None
            optimizer = exchange.give_bytes(group, donor, packed, interrupt)
        took = not mine and decision.lacks_model(group.rank)
        lacks = not mine and decision.lacks_control(group.rank) and control is not None
        held = control if lacks and control is not None else self.control
        if held.window and not any(row.live for row in decision.held):
            for note in elche.resume_notes(held.elche, members, self.spec.elche):
                log.info("resumed after window %d: %s", held.window, note)
        entered = plan.enter_epoch(held, members, self.spec, seating)
        keeps = course.keeps(self.control, entered, took=took)
        if took and flat is not None:
            self.model.adopt(flat, delta=keeps and course.work.batches > 0, alpha=self.spec.alpha)
        elif not keeps:
            self.model.apply()
        if not mine and optimizer is not None and (not self.live or (alike and took)):
            self._load_optimizer(treefile.unpack(optimizer))
        void = course.entered(self.control, entered, took=took)
        self.control = entered
        self.live = True
        self.entered = epoch
        self.stopped = decision.stopped
        self.writer = decision.writer
        return void

    def _require_same_options(self, decision: Decision, rank: int) -> None:
        """Where gradients are averaged, ranks read each other's options of the optimizer by their places."""
        odd = [str(other) for other, row in enumerate(decision.held) if row.options != decision.source.options]
        if str(rank) not in odd:
            return
        named = ", ".join(odd[:8]) + (f" and {len(odd) - 8} more" if len(odd) > 8 else "")
        raise user_code(
            Ended.SCRIPT_RAISED,
            f"The optimizer of {'rank' if len(odd) == 1 else 'ranks'} {named} has other options than that of rank "
            f"{decision.donor}, and spec.elche.average is gradients: all take the same step. Rank {rank} steps with "
            f"{self.model.gradients}. Make the same optimizer with the same parameter groups on every device in the "
            "optimizer factory of session.setup, or set spec.elche.average to parameters.",
        )

    def _load_optimizer(self, state: dict[str, Any]) -> None:
        """Take another rank's; who trains already keeps what its own schedule goes on from.

        The rest of a group is the optimizer's own: some count their steps there.
        """
        if self.live:
            for given, own in zip(state["param_groups"], self.optimizer.param_groups, strict=True):
                given.update({key: own[key] for key in SCHEDULED if key in own})
        self.optimizer.load_state_dict(state)

    def optimizer_snapshot(self) -> Any:
        """A copy of the optimizer's state that training does not change any more."""
        return treefile.copied(self.optimizer.state_dict())

    def learning_rate(self) -> float:
        """The largest learning rate among the optimizer's parameter groups; 0 when it has none."""
        return max((float(group["lr"]) for group in self.optimizer.param_groups if "lr" in group), default=0.0)

    def reset_optimizer(self) -> None:
        """Forget the optimizer's state: it holds numbers that are not finite.

        Where gradients are averaged it never met this rank's, and stays equal to the others'.
        """
        if self.model.gradients is None:
            self.optimizer.state.clear()
