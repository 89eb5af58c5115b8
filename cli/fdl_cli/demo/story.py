"""What happened between two states of a run, in sentences. Pure."""

from dataclasses import dataclass

from fdl_api.run import FdlRunStatus
from fdl_api.wire import CheckpointState, MemberState, RankWindow, State, member_of

ACTIVE = "active"


@dataclass(frozen=True, slots=True)
class Row:
    """One member as the demo shows it."""

    member: str
    node: str
    state: str
    share: float | None
    ms_per_batch: float | None
    batches: int


def rows(state: State, nodes: dict[str, str]) -> list[Row]:
    """Members in the order of their seats; the dead are left out once a successor holds the seat.

    Args:
        state: the coordinator's state.
        nodes: node by member name.
    """
    newest: dict[tuple[str, int], MemberState] = {}
    for member in state.members:
        seat = (member.cohort, member.ordinal)
        if seat not in newest or newest[seat].incarnation < member.incarnation:
            newest[seat] = member
    by_uid: dict[str, list[RankWindow]] = {}
    for rank in state.ranks:
        by_uid.setdefault(member_of(rank.uid), []).append(rank)
    return [_row(newest[seat], by_uid.get(newest[seat].uid, []), nodes) for seat in sorted(newest)]


def _row(member: MemberState, ranks: list[RankWindow], nodes: dict[str, str]) -> Row:
    known = [rank.ms_per_batch for rank in ranks if rank.ms_per_batch > 0]
    takes_part = member.state == ACTIVE and bool(ranks)
    return Row(
        member=member.member,
        node=nodes.get(member.member, "?"),
        state=member.state,
        share=sum(rank.share for rank in ranks) if takes_part else None,
        ms_per_batch=sum(known) / len(known) if known and takes_part else None,
        batches=member.batches,
    )


def happened(before: State | None, after: State) -> list[str]:
    """Sentences about what changed, oldest first."""
    if before is None:
        return []
    told: list[str] = []
    old = {member.member: member for member in before.members}
    for member in after.members:
        known = old.get(member.member)
        if known is None or known.state != member.state:
            sentence = _member(member)
            if sentence:
                told.append(sentence)
    if after.epoch != before.epoch:
        active = sum(member.state == ACTIVE for member in after.members)
        told.append(f"membership epoch {after.epoch}: {active} members")
    for seconds in after.recoveries[len(before.recoveries) :]:
        told.append(f"the survivors committed their next window {seconds:.2f} s after the death")
    if after.checkpoint is not None and _newer(before.checkpoint, after.checkpoint):
        size = after.checkpoint.size_bytes / 2**20
        told.append(f"checkpoint at window {after.checkpoint.window} written and verified ({size:.1f} MiB)")
    return told


def _member(member: MemberState) -> str:
    if member.state == ACTIVE and member.incarnation > 1:
        return f"{member.member}, the successor, takes part"
    if member.state == "joining" and member.incarnation > 1:
        return f"{member.member}, the successor, has dialled in and loads"
    if member.state == "dead":
        return f"{member.member} is dead: {member.message or member.reason}"
    if member.state == "refused":
        return f"{member.member} was refused: {member.message}"
    return ""


def _newer(before: CheckpointState | None, after: CheckpointState) -> bool:
    return before is None or before.window < after.window


def victim(state: State) -> str | None:
    """The member to kill: an active one that is not the first, so that it is nobody's donor by default."""
    active = sorted((m for m in state.members if m.state == ACTIVE), key=lambda m: (m.cohort, m.ordinal))
    return active[1].member if len(active) > 1 else None


def from_status(status: FdlRunStatus) -> State | None:
    """The state as far as an FdlRun's status tells it, for when the coordinator itself does not answer."""
    training = status.training
    if training is None or status.phase is None:
        return None
    uids = {member.name: member.uid or member.name for member in status.members}
    return State(
        generation=training.generation,
        run_uid=training.run_uid,
        attempt=training.attempt,
        outcome=_OUTCOMES.get(status.phase.value, "training"),
        epoch=training.epoch,
        window=training.window,
        data_epoch=training.data_epoch,
        anchor=training.anchor,
        samples=training.samples,
        total_samples=training.total_samples,
        samples_per_second=training.samples_per_second,
        eta_seconds=training.eta_seconds,
        loss=training.loss,
        metrics=training.metrics,
        deaths=training.deaths,
        goodput=training.goodput,
        members=[
            MemberState(
                uid=uids[member.name],
                member=member.name,
                cohort=member.cohort,
                ordinal=member.ordinal,
                incarnation=member.incarnation,
                state=_STATES.get(member.phase.value, "joining"),
                reason=member.reason,
                message=member.message[:2048],
            )
            for member in status.members
        ],
        ranks=[
            RankWindow(
                uid=f"{uids.get(rank.member, rank.member)}/{rank.local_rank}",
                quota=rank.quota,
                batches=rank.quota,
                samples=0,
                compute_ms=0,
                data_wait_ms=0,
                ms_per_batch=rank.ms_per_batch,
                share=rank.share,
            )
            for rank in training.ranks
        ],
    )


_STATES = {
    "Pending": "joining",
    "Starting": "joining",
    "Running": ACTIVE,
    "Leaving": "leaving",
    "Succeeded": "finished",
    "Failed": "dead",
    "Lost": "dead",
}
_OUTCOMES = {"Succeeded": "succeeded", "Failed": "failed", "Recovering": "recovering", "Suspended": "suspended"}
