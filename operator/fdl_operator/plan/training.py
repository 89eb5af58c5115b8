"""The part of the status that shows the training, as the coordinator tells it."""

import math
from collections.abc import Iterable

from fdl_api.run import (
    CheckpointStatus,
    GuardActionStatus,
    GuardStatus,
    RankStatus,
    RefusalStatus,
    TrainingStatus,
)
from fdl_api.wire import CheckpointState, GuardReport, State, member_of
from fdl_operator import clock


def render(state: State, heard_at: float) -> TrainingStatus:
    """Status of the training from a coordinator's snapshot.

    Args:
        state: what the coordinator said.
        heard_at: when it said so (seconds since 1970).
    """
    members = {member.uid: member.member for member in state.members}
    progress = state.samples / state.total_samples if state.total_samples > 0 else 0.0
    return TrainingStatus(
        run_uid=state.run_uid,
        attempt=state.attempt,
        generation=state.generation,
        epoch=max(0, state.epoch),
        window=max(0, state.window),
        data_epoch=state.data_epoch,
        anchor=state.anchor,
        samples=state.samples,
        total_samples=state.total_samples,
        progress=round(min(1.0, max(0.0, progress)), 4),
        samples_per_second=round(_finite(state.samples_per_second) or 0.0, 2),
        eta_seconds=_round(state.eta_seconds, 1),
        goodput=_round(state.goodput, 4),
        loss=_round(state.loss, 6),
        metrics={name: value for name, value in state.metrics.items() if math.isfinite(value)},
        deaths=state.deaths,
        stale_messages=state.stale_messages,
        checkpoint=_checkpoint(state.checkpoint),
        checkpoint_problem=state.checkpoint_problem,
        notes=tuple(state.notes),
        refusals=tuple(
            RefusalStatus(reason=refusal.reason, message=refusal.message, permanent=refusal.permanent)
            for refusal in state.refusals
        ),
        ranks=tuple(
            RankStatus(
                member=members.get(member_of(rank.uid), member_of(rank.uid)),
                local_rank=int(rank.uid.rpartition("/")[2] or 0),
                ms_per_batch=round(max(0.0, _finite(rank.ms_per_batch) or 0.0), 3),
                quota=rank.quota,
                share=round(min(1.0, max(0.0, _finite(rank.share) or 0.0)), 4),
                data=rank.data,
            )
            for rank in state.ranks
        ),
        guard=_guard(state.guard),
        last_heard=clock.render(heard_at),
    )


def carry(old: TrainingStatus | None, new: TrainingStatus, skipped: Iterable[str] = ()) -> TrainingStatus:
    """Keep on record what a fresh coordinator has not heard of yet: the checkpoint and the progress (case D10).

    Args:
        old: what is on record.
        new: what the coordinator says.
        skipped: sentences about checkpoints that members passed over when they looked for one to start from. One that
            is on record is not verified any more.
    """
    if old is None:
        return new
    kept: dict[str, object] = {}
    if new.checkpoint is None and old.checkpoint is not None:
        bad = any(f"Checkpoint {old.checkpoint.path} in " in text for text in skipped)
        kept["checkpoint"] = old.checkpoint.model_copy(update={"verified": False}) if bad else old.checkpoint
    if new.epoch == 0 and new.window < old.window:
        kept |= {name: getattr(old, name) for name in _PROGRESS}
    return new.model_copy(update=kept) if kept else new


_PROGRESS = ("window", "data_epoch", "samples", "total_samples", "progress")


def same(old: TrainingStatus | None, new: TrainingStatus | None) -> bool:
    """Whether two differ in nothing but the time at which they were heard."""
    if old is None or new is None:
        return old is new
    return old == new or old.model_copy(update={"last_heard": new.last_heard}) == new


def may_write(old: TrainingStatus | None, now: float, interval: float) -> tuple[bool, float]:
    """Whether the training part alone is worth a write now, and otherwise when it will be."""
    last = clock.parse(old.last_heard) if old is not None else None
    if last is None or now - last >= interval:
        return True, now
    return False, last + interval


def _guard(guard: GuardReport | None) -> GuardStatus | None:
    if guard is None:
        return None
    return GuardStatus(
        divergence=round(max(0.0, _finite(guard.divergence) or 0.0), 6),
        latched=guard.latched,
        counts=guard.counts,
        last=tuple(
            GuardActionStatus(window=record.window, guard=record.guard, action=record.action, message=record.why)
            for record in guard.last
        ),
    )


def _checkpoint(checkpoint: CheckpointState | None) -> CheckpointStatus | None:
    if checkpoint is None:
        return None
    return CheckpointStatus(
        last_durable_step=checkpoint.window,
        samples=checkpoint.samples,
        path=checkpoint.path,
        size_bytes=checkpoint.size_bytes,
        verified=checkpoint.verified,
        saved_at=checkpoint.saved_at or None,
        final=checkpoint.final,
        stall_ms=round(max(0.0, checkpoint.stall_ms), 3),
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _round(value: float | None, digits: int) -> float | None:
    finite = _finite(value)
    return None if finite is None else round(finite, digits)
