"""ElChe's steps, as the plan of a window takes them: observe what was done, then assign what is to be done."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from fdl_trainer import guard
from fdl_trainer.elche import deadline, hints
from fdl_trainer.elche.election import elect
from fdl_trainer.elche.growth import apply_verdict, proposal
from fdl_trainer.elche.hints import Seating
from fdl_trainer.elche.knobs import ElcheKnobs, Policy
from fdl_trainer.elche.quota import first_quota, wanted, within_epoch
from fdl_trainer.elche.speed import RankReport, RankSpeed, cost_kind, learn, sample
from fdl_trainer.elche.state import ElcheState
from fdl_trainer.guard import STABLE, Signal


def create(spec: ElcheKnobs, policy: Policy) -> ElcheState:
    """State before the first window."""
    return ElcheState(anchor=1 if policy is Policy.SYNC else spec.anchor)


def observe(
    state: ElcheState,
    reports: Sequence[RankReport],
    *,
    reduce_ms: float,
    fill_ms: float,
    spec: ElcheKnobs,
    policy: Policy,
    divergence: float = 0.0,
    lr: float = 0.0,
    window: int = 0,
    quarantined: Sequence[str] = (),
) -> ElcheState:
    """Learn from a committed window: speeds, anchor rank, and the anchor under the guard's verdict.

    Args:
        state: what was known before.
        reports: one report a member, in member order.
        reduce_ms: cost of the averaging itself, without waiting for late ranks, in milliseconds.
        fill_ms: excess of the anchor rank's first batch over its steady rate (loader fill), in milliseconds.
        spec: the run's knobs.
        policy: sync or cadence.
        divergence: the guard's D, of the previous window; 0 when not measured.
        lr: largest learning rate of any rank; 0 when not known.
        window: number of the committed window, for the guards' journal.
        quarantined: ranks whose model was not finite.

    Returns:
        The new state; its quotas are those of before until :func:`assign` makes new ones.
    """
    ranks = dict(state.ranks)
    known = [ranks.get(report.uid, RankSpeed()) for report in reports]
    kind = cost_kind(known, reports, policy)
    samples = [sample(speed, report, kind) for speed, report in zip(known, reports, strict=True)]
    for speed, report, sample_ms in zip(known, reports, samples, strict=True):
        ranks[report.uid] = learn(speed, report.batches, sample_ms)
    state = replace(state, ranks=ranks, calibrations=state.calibrations + any(samples))
    state = elect(state, [report.uid for report in reports])
    state = replace(state, staged=proposal(state, reduce_ms, fill_ms, spec, policy))
    watch = guard.quarantined(state.guard, window, quarantined)
    judged, loosen = STABLE, False
    if policy is not Policy.SYNC:
        steps = max((report.batches for report in reports), default=0)
        signal = Signal(window, divergence, steps, lr, state.anchor, state.phase)
        watch, judged, loosen = guard.judge(watch, signal, spec)
    state = replace(state, guard=watch, growth_latched=state.growth_latched and not loosen)
    return apply_verdict(state, judged.verdict, spec, policy, judged.factor)


def assign(
    state: ElcheState,
    members: Sequence[str],
    *,
    spec: ElcheKnobs,
    policy: Policy,
    epoch_batches: int,
    leaving: Collection[str] = (),
    deadlines: bool = False,
) -> ElcheState:
    """Plan the quotas of the next window and forget who is no member any more.

    Args:
        state: state after :func:`observe`.
        members: ranks of the next window, in order.
        spec: the run's knobs.
        policy: sync: the anchor for all, or fixed shares; cadence: in proportion to speed.
        epoch_batches: micro-batches in a data epoch, which no window may exceed.
        leaving: members that train nothing more.
        deadlines: whether jittery ranks stop by time (:mod:`fdl_trainer.elche.deadline`), and so are given more.

    Returns:
        The state with a quota for each member, 0 for those that leave, at least 1 for the others.
    """
    state = replace(state, ranks={uid: state.ranks.get(uid, RankSpeed()) for uid in members})
    if not state.ms_per_batch(state.anchor_rank):
        state = elect(state, members)
    gone = set(leaving)
    asked = {uid: quota for uid, quota in wanted(state, members, spec, policy).items() if uid not in gone}
    capped, binding = within_epoch(asked, epoch_batches)
    by_time = deadlines and policy is not Policy.SYNC and not binding
    ranks = {}
    for uid, speed in state.ranks.items():
        quota = capped.get(uid, 0)
        given = deadline.lease(speed, quota, bounded=spec.max_batch_diff is not None) if by_time else quota
        ranks[uid] = replace(speed, quota=quota, lease=given)
    length = 0.0 if policy is Policy.SYNC else deadline.window_ms(ranks)
    return replace(state, ranks=ranks, cap_binding=binding, moved=False, window_ms=length)


def quotas(state: ElcheState, members: Sequence[str], policy: Policy = Policy.CADENCE) -> dict[str, int]:
    """Batches to give to each member, in order: its quota, or more where it stops by time.

    Members that were never planned get two (in sync modes: at most the anchor).
    """
    return {uid: state.ranks[uid].lease if uid in state.ranks else first_quota(state, policy) for uid in members}


def deadline_ms(state: ElcheState, uid: str, lease: int = 0) -> float:
    """Length of the window at which a rank stops, in milliseconds; 0 for a rank that stops by count alone.

    Args:
        state: the newest plan.
        uid: the rank.
        lease: batches that it was given for the window that it trains, where an older plan gave them.
    """
    speed = state.ranks.get(uid, RankSpeed())
    return state.window_ms if max(lease, speed.lease) > speed.quota > 0 else 0.0


def keep(state: ElcheState, members: Sequence[str]) -> ElcheState:
    """Forget all ranks but these; if the anchor rank is gone, another one is elected."""
    state = replace(state, ranks={uid: state.ranks[uid] for uid in members if uid in state.ranks})
    return state if state.anchor_rank in state.ranks else elect(replace(state, anchor_rank=""), members)


def admit(state: ElcheState, joiners: Mapping[str, int]) -> ElcheState:
    """Take ranks of unknown speed in, with the quotas of their first window."""
    fresh = {uid: RankSpeed(quota=first, lease=first) for uid, first in joiners.items()}
    return replace(state, ranks={**state.ranks, **fresh})


def believe(
    state: ElcheState, members: Sequence[str], seating: Seating, spec: ElcheKnobs, policy: Policy
) -> ElcheState:
    """The state with what is believed of the speeds of an epoch's ranks, by the user's word or their devices.

    It depends on the epoch alone, not on what was believed before.

    Args:
        state: what is known.
        members: ranks of the epoch, in order.
        seating: what the epoch's message says of them.
        spec: the run's knobs.
        policy: sync or cadence.
    """
    return replace(state, shares=hints.shares(members, seating, spec, policy))


def resume_notes(state: ElcheState, members: Sequence[str], spec: ElcheKnobs) -> list[str]:
    """What of a checkpoint's state applies to the ranks that resume it, and what does not, as sentences.

    The state itself is fitted by :func:`keep` and :func:`admit`. Speeds belong to ranks: a successor may sit on another
    device, so those of ranks that are gone are forgotten. The anchor and the guards' memory belong to the model.

    Args:
        state: the state of the checkpoint.
        members: the ranks that go on with it.
        spec: the run's knobs.
    """
    notes = [f"The anchor of {state.anchor} batches and what the guards remember are kept."]
    before, gone = len(state.ranks), [uid for uid in state.ranks if uid not in members]
    new = [uid for uid in members if uid not in state.ranks]
    if gone:
        notes.append(f"The speeds of {len(gone)} of {before} ranks are forgotten: they are not in this cohort.")
    if new:
        notes.append(f"{len(new)} of {len(members)} ranks have not been measured: they start with a few batches.")
    if state.anchor > spec.max_anchor:
        notes.append(f"The anchor is above elche.maxAnchor ({spec.max_anchor}); it stays, but does not grow.")
    return notes
