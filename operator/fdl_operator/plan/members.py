"""The members of a run: how many, which of them died and why, and who replaces them."""

import dataclasses

from fdl_api import labels, names
from fdl_api.nodes import NodeRecord
from fdl_api.placement import Placement
from fdl_api.reasons import Ended
from fdl_api.run import FdlRunSpec, MemberPhase, MemberStatus, RunPhase
from fdl_api.termination import Cause, fault_alone
from fdl_api.wire import MemberState
from fdl_operator.model import CreateMember, DeletePod, PodPhase, PodRecord
from fdl_operator.plan import budgets, seating, waiting
from fdl_operator.plan.deaths import APART, SEAT_ONLY, VANISHED, Death, classify
from fdl_operator.plan.draft import DEAD, Draft, Seat, seat_name


def wanted(spec: FdlRunSpec) -> dict[str, int]:
    """Members per cohort: spec.replicas shared in listed order within the bounds, else each cohort's own.

    Each cohort gets its minReplicas first; what is left goes to the first cohort up to its maxReplicas, then to the
    next. Totals outside the sums of the bounds are clamped.
    """
    if spec.replicas is None:
        return {cohort.name: cohort.replicas for cohort in spec.cohorts}
    counts = {cohort.name: cohort.min_replicas for cohort in spec.cohorts}
    left = spec.replicas - sum(counts.values())
    for cohort in spec.cohorts:
        more = max(0, min(left, cohort.ceiling - cohort.min_replicas))
        counts[cohort.name] += more
        left -= more
    return counts


def account(draft: Draft) -> None:
    """Bring the member table up to date with the pods, and bill each death once."""
    reported = {member.uid: member for member in draft.state.members} if draft.state else {}
    for seat, member in sorted(draft.members.items()):
        pod = draft.pods.get(member.name)
        if member.phase in DEAD:
            draft.deaths[seat] = _known_death(draft, member, pod)
            continue
        death = _death(draft, member, pod)
        if _scaled_away(draft, seat):
            _retire(draft, seat, member, pod, ended=death is not None)
        elif death is not None:
            said = reported.get(pod.uid if pod is not None else member.uid)
            committed = said.committed if said is not None else member.phase is MemberPhase.RUNNING
            _bury(draft, seat, member, pod, death, committed=committed)
        elif pod is not None:
            draft.members[seat] = _refreshed(draft, member, pod, reported.get(pod.uid))
    for seat in [seat for seat in draft.members if _scaled_away(draft, seat) and seat in draft.deaths]:
        _forget(draft, seat)
    draft.parked = {seat for seat, death in draft.deaths.items() if budgets.is_parked(draft, seat, death)}


def close(draft: Draft) -> None:
    """Bring the member table of a finished run to its end; nobody pays for anything any more."""
    for seat, member in sorted(draft.members.items()):
        pod = draft.pods.get(member.name)
        if member.phase in DEAD or (pod is not None and not pod.ended):
            continue
        death = classify(pod, None) if pod is not None else None
        well = death.cause is Cause.COMPLETE if death is not None else draft.phase is RunPhase.SUCCEEDED
        update: dict[str, object] = {"phase": MemberPhase.SUCCEEDED if well else MemberPhase.FAILED}
        if death is not None:
            update |= {"reason": death.reason[:64], "message": death.message[:1000]}
        draft.members[seat] = member.model_copy(update=update)


def fill(draft: Draft) -> None:
    """Give every wanted seat a living member: all at once, each under a new name, recorded before it is created."""
    for cohort in draft.spec.cohorts:
        for ordinal in range(draft.wanted.get(cohort.name, 0)):
            seat = (cohort.name, ordinal)
            member = draft.members.get(seat)
            if member is not None and member.phase not in DEAD:
                if not member.uid and member.name not in draft.pods and member.name not in draft.snapshot.created:
                    _create(draft, member)
                continue
            if seat in draft.parked or (member is not None and member.phase is MemberPhase.SUCCEEDED):
                continue
            death = draft.deaths.get(seat)
            at = budgets.due(draft.counters.get(seat), death, draft.pod_of(seat), draft.snapshot.limits, draft.now)
            if at > draft.now:
                draft.wakes.append(at)
                draft.waits[seat] = at
            elif cohort.name in draft.options:
                _succeed(draft, seat)


def tidy(draft: Draft) -> None:
    """Delete what no seat needs: pods of earlier attempts, and all but the newest dead pod of a seat (for its log)."""
    for pod in draft.stale_pods:
        _delete(draft, pod)
    for pod in draft.member_pods():
        member = draft.members.get((pod.cohort, pod.ordinal))
        if member is None:
            if not _just_created(draft, pod):
                _delete(draft, pod)
        elif pod.incarnation < member.incarnation and (not pod.ended or pod.incarnation < member.incarnation - 1):
            _delete(draft, pod)


def replan(draft: Draft) -> None:
    """Take back pods that find no node, or no image there, where the placement would be another one today."""
    for seat, member in sorted(draft.members.items()):
        pod = draft.pods.get(member.name)
        options = draft.options.get(seat[0])
        if pod is None or options is None or member.phase in DEAD or pod.deleted_at is not None:
            continue
        since = _waits_since(pod)
        if since is None or not pod.placement:
            continue
        same = any(option.digest == pod.placement for option in options)
        if same and not seating.elsewhere(draft, seat[0], pod.placement):
            continue
        at = since + draft.snapshot.limits.unschedulable * (seating.PATIENCE if same else 1)
        if at > draft.now:
            draft.wakes.append(at)
            continue
        _delete(draft, pod)
        _succeed(draft, seat, but=pod.placement)


def _waits_since(pod: PodRecord) -> float | None:
    """Since when a pod waits for a node or an image; ``None`` when it does not."""
    if not pod.node:
        return pod.unschedulable_since
    return pod.created_at if pod.waiting_reason in waiting.IMAGE_PROBLEMS else None


def needs_pods(draft: Draft) -> set[str]:
    """Cohorts for which a placement has to be found: a seat is empty, or a pod finds no node or no image."""
    cohorts: set[str] = set()
    for name, count in draft.wanted.items():
        for ordinal in range(count):
            member = draft.members.get((name, ordinal))
            pod = draft.pods.get(member.name) if member else None
            dead = member is None or member.phase in DEAD
            waits = (pod is None and member is not None and not member.uid) or (
                pod is not None and (not pod.node or _waits_since(pod) is not None)
            )
            if (dead or waits) and (name, ordinal) not in draft.parked:
                cohorts.add(name)
    return cohorts


def _death(draft: Draft, member: MemberStatus, pod: PodRecord | None) -> Death | None:
    """Why this member is to be counted as dead now; ``None`` while it lives."""
    if pod is None:
        existed = bool(member.uid) or member.name in draft.snapshot.gone
        return VANISHED if existed and member.name not in draft.snapshot.created else None
    node = draft.snapshot.nodes.get(pod.node)
    if pod.ended:
        death = _named(draft, classify(pod, node))
        return APART if death.cause is Cause.COMPLETE and _disowned(draft, pod) else death
    return _lost(draft, pod, node)


def _disowned(draft: Draft, pod: PodRecord) -> bool:
    """Whether the newest coordinator leads a formed cohort without this member, and has not heard of it."""
    state = draft.live_state
    if state is None or not draft.snapshot.stream.connected or state.epoch == 0:
        return False
    return not any(member.uid == pod.uid and member.state not in ("dead", "refused") for member in state.members)


def _lost(draft: Draft, pod: PodRecord, node: NodeRecord | None) -> Death | None:
    """Deaths that the pod itself does not admit: stuck in Terminating, on a lost node, or hung."""
    limits = draft.snapshot.limits
    if pod.deleted_at is not None:
        at = pod.deleted_at + limits.termination_timeout
        if draft.now >= at:
            return classify(pod, node)
        draft.wakes.append(at)
    node_lost = bool(pod.node) and (node is None or not node.ready)
    if node_lost and _disowned(draft, pod):
        return classify(pod, node)
    said_dead = draft.snapshot.stream.dead_since.get(pod.uid)
    if said_dead is None:
        return None
    if node_lost:
        return classify(pod, node)
    at = said_dead + limits.member_hang
    if draft.now >= at:
        sentence = f"the coordinator lost {pod.name} {int(draft.now - said_dead)} s ago, but its pod still runs"
        return Death(Cause.INFRASTRUCTURE, Ended.HEARTBEAT_LOST, sentence)
    draft.wakes.append(at)
    return None


def _named(draft: Draft, death: Death) -> Death:
    """A missing script with the object that should hold it, which its member cannot know."""
    source, namespace = draft.spec.trainer.source, draft.snapshot.run.namespace
    if death.reason != Ended.SCRIPT_MISSING:
        return death
    if source.config_map is not None:
        what = f"ConfigMap {source.config_map.name} in namespace {namespace} is not there or has no key "
        what += f"{source.config_map.key}: create it, or correct spec.trainer.source.configMap in a new run"
    elif source.volume is not None:
        what = f"claim {source.volume.claim} in namespace {namespace} has no file {source.volume.path}: put it there, "
        what += "or correct spec.trainer.source.volume in a new run"
    else:
        return death
    return dataclasses.replace(death, message=f"{what} ({fault_alone(death.message)})")


def _known_death(draft: Draft, member: MemberStatus, pod: PodRecord | None) -> Death:
    """Why a member that is on record as dead had died."""
    if pod is not None and pod.ended:
        return _named(draft, classify(pod, draft.snapshot.nodes.get(pod.node)))
    if member.phase is MemberPhase.SUCCEEDED:
        return Death(Cause.COMPLETE, member.reason, member.message)
    return Death(Cause.INFRASTRUCTURE, member.reason or Ended.NODE_LOST, member.message)


def _bury(
    draft: Draft, seat: Seat, member: MemberStatus, pod: PodRecord | None, death: Death, *, committed: bool
) -> None:
    draft.deaths[seat] = death
    asked_to_stop = draft.spec.run_policy.suspend and death.cause is not Cause.APP
    if death.cause is Cause.COMPLETE:
        phase = MemberPhase.SUCCEEDED
    else:
        phase = MemberPhase.FAILED if pod is not None and pod.ended else MemberPhase.LOST
    if phase is not MemberPhase.SUCCEEDED and not asked_to_stop:
        ended = pod.finished_at if pod is not None and pod.finished_at is not None else draft.now
        lasted = budgets.lasted(death, pod, ended, committed=committed)
        in_a_row = budgets.bill(draft, seat, death, ended=ended, lasted=lasted)
        again = f" ({in_a_row} holders of seat {seat_name(seat)} in a row did not last)" if in_a_row > 1 else ""
        draft.event(death.reason, f"member {member.name} ended: {death.message}{again}", warning=True)
    draft.members[seat] = member.model_copy(
        update={
            "phase": phase,
            "reason": death.reason[:64],
            "message": death.message[:1000],
            "uid": pod.uid if pod is not None else member.uid,
            "node": pod.node if pod is not None else member.node,
        }
    )
    if pod is not None and not pod.ended:
        _delete(draft, pod)


def _retire(draft: Draft, seat: Seat, member: MemberStatus, pod: PodRecord | None, *, ended: bool) -> None:
    """A seat that is no longer wanted: its holder leaves in order and nobody pays for it."""
    if ended or pod is None:
        _forget(draft, seat)
        return
    _delete(draft, pod)
    draft.members[seat] = member.model_copy(
        update={"phase": MemberPhase.LEAVING, "uid": pod.uid, "node": pod.node, "reason": "ScaledDown"}
    )


def _forget(draft: Draft, seat: Seat) -> None:
    draft.members.pop(seat, None)
    draft.counters.pop(seat, None)
    draft.deaths.pop(seat, None)


def _scaled_away(draft: Draft, seat: Seat) -> bool:
    return seat[1] >= draft.wanted.get(seat[0], 0)


def _succeed(draft: Draft, seat: Seat, *, but: str = "") -> None:
    """Record the next incarnation of a seat, and ask for its pod; ``but``: not where its predecessor found no place."""
    cohort, ordinal = seat
    number = draft.next_incarnations.get(seat_name(seat), 0) + 1
    draft.next_incarnations[seat_name(seat)] = number
    placement = seating.choose(draft, cohort, but=but)
    before = draft.members.get(seat)
    refused = before is not None and before.reason in SEAT_ONLY
    member = MemberStatus(
        name=names.member_pod(draft.snapshot.run.name, cohort, ordinal, number),
        cohort=cohort,
        ordinal=ordinal,
        incarnation=number,
        variant=placement.variant,
        reason=before.reason if before is not None and refused else "",
        message=before.message if before is not None and refused else "",
    )
    draft.members[seat] = member
    draft.deaths.pop(seat, None)
    _create(draft, member, placement)


def _create(draft: Draft, member: MemberStatus, placement: Placement | None = None) -> None:
    if placement is None and member.cohort in draft.options:
        placement = seating.choose(draft, member.cohort)
    asked = any(isinstance(action, CreateMember) and action.name == member.name for action in draft.creates)
    if placement is None or asked or _held_back(draft, member.name):
        return
    draft.creates.append(
        CreateMember(
            name=member.name,
            cohort=member.cohort,
            ordinal=member.ordinal,
            incarnation=member.incarnation,
            attempt=draft.attempt,
            placement=placement,
        )
    )


def _held_back(draft: Draft, child: str) -> bool:
    """Whether the API server refused this child a moment ago (case K7)."""
    failure = draft.snapshot.failures.get(child)
    if failure is None or failure.retry_at <= draft.now:
        return False
    draft.wakes.append(failure.retry_at)
    return True


def _delete(draft: Draft, pod: PodRecord) -> None:
    action = DeletePod(name=pod.name, uid=pod.uid)
    if pod.deleted_at is None and action not in draft.deletes:
        draft.deletes.append(action)


def _just_created(draft: Draft, pod: PodRecord) -> bool:
    return any(isinstance(action, CreateMember) and action.name == pod.name for action in draft.creates)


def _refreshed(draft: Draft, member: MemberStatus, pod: PodRecord, reported: MemberState | None) -> MemberStatus:
    """A living member's row: pod first, then what the coordinator says about it."""
    reason, message = "", ""
    if pod.deleted_at is not None:
        phase = MemberPhase.LEAVING
    elif pod.phase is not PodPhase.RUNNING:
        phase = MemberPhase.STARTING if pod.node else MemberPhase.PENDING
        if (found := waiting.trouble(pod, draft.now)) is not None:
            reason, message = found.reason, found.sentence
        if pod.node and (at := waiting.next_word_at(pod, draft.now)) is not None:
            draft.wakes.append(at)
    elif reported is None:
        phase = MemberPhase.RUNNING if member.phase is MemberPhase.RUNNING else MemberPhase.STARTING
    elif reported.state in ("active", "finished"):
        phase = MemberPhase.RUNNING
    elif reported.state == "leaving":
        phase = MemberPhase.LEAVING
    elif reported.state in ("dead", "refused", "suspended"):
        phase = MemberPhase.RUNNING if member.phase is MemberPhase.RUNNING else MemberPhase.STARTING
        reason, message = reported.reason or reported.state, reported.message
    else:
        phase = MemberPhase.STARTING
    told = bool(reason) and reason not in waiting.FINE
    if not told and phase is not MemberPhase.RUNNING and member.reason in SEAT_ONLY:
        reason, message = member.reason, member.message  # of the predecessor, until this one is admitted
    update = {
        "uid": pod.uid,
        "node": pod.node,
        "phase": phase,
        "variant": pod.variant or member.variant,
        "reason": reason[:64],
        "message": message[:1000],
    }
    return member.model_copy(update=update)


def takes_part(member: MemberStatus) -> bool:
    """Whether a member trains: a reason on one that runs is the coordinator's, which has given it up."""
    return member.phase is MemberPhase.RUNNING and not member.reason


def living(draft: Draft) -> list[PodRecord]:
    """Member pods of this attempt that have not ended."""
    return [pod for pod in draft.pods.values() if pod.role == labels.ROLE_MEMBER and not pod.ended]
