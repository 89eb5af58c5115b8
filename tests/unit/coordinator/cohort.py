"""A cohort of simulated ranks around the real engine, in virtual time.

The ranks follow docs/protocol.md: they form each epoch that they hear of, switch to a confirmed plan at the next
window, commit windows together and report them. Tests script deaths, joins and leaves; nothing here decides.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from fdl_api import wire
from fdl_api.reasons import Ended
from fdl_api.run import ElcheSpec
from fdl_api.runconfig import CohortConfig, RunConfig, ScriptConfig
from fdl_api.spec_policy import FailurePolicySpec, JoinSpec, Mode
from fdl_api.termination import Saved
from fdl_api.version import WIRE_VERSION
from fdl_coordinator.engine import Engine, Send


def run_config(**changes: object) -> RunConfig:
    """A run of one cpu cohort of up to 8 members that starts with 3."""
    values: dict[str, object] = {
        "name": "digits",
        "namespace": "team",
        "run_uid": "run-1",
        "attempt": 1,
        "mode": Mode.CPU_CADENCE,
        "coordinator_host": "digits-coordinator.team.svc",
        "coordinator_port": 7337,
        "cohorts": [CohortConfig(name="cpu", vendor="cpu", min_replicas=1, max_replicas=8, devices_per_replica=1)],
        "join": JoinSpec(min_members=2, target_members=3, window_seconds=30, cap_seconds=60),
        "elche": ElcheSpec(),
        "failure_policy": FailurePolicySpec(),
        "script": ScriptConfig(path="/train.py"),
    }
    return RunConfig.model_validate({**values, **changes})


def agent_hello(ordinal: int, incarnation: int = 1, **changes: object) -> wire.AgentHello:
    """Hello of member cpu-<ordinal>."""
    values: dict[str, object] = {
        "wire_version": WIRE_VERSION,
        "fdl_version": "0",
        "run_uid": "run-1",
        "attempt": 1,
        "member_uid": f"m{ordinal}.{incarnation}",
        "member": f"digits-cpu-{ordinal}-{incarnation}",
        "cohort": "cpu",
        "ordinal": ordinal,
        "incarnation": incarnation,
        "host": f"node{ordinal}",
        "address": f"10.0.0.{ordinal}",
        "devices": [wire.Device(index=0, vendor="cpu", arch="x86_64")],
    }
    return wire.AgentHello.model_validate({**values, **changes})


def rank_hello(agent: wire.AgentHello, **changes: object) -> wire.RankHello:
    """Hello of the only rank of a member."""
    values: dict[str, object] = {
        "wire_version": WIRE_VERSION,
        "run_uid": agent.run_uid,
        "attempt": agent.attempt,
        "member_uid": agent.member_uid,
        "member": agent.member,
        "cohort": agent.cohort,
        "local_rank": 0,
        "address": agent.address,
        "model_digest": "aa",
        "model": [wire.ParameterSpec(name="w", dtype="float32", shape=[2])],
        "dataset_digest": "dd",
        "dataset_samples": 1000,
        "total_samples": 2000,
        "committed": wire.Position(epoch=0, window=0),
    }
    return wire.RankHello.model_validate({**values, **changes})


@dataclass
class SimulatedRank:
    """What one rank knows."""

    uid: str
    epoch: wire.Epoch | None = None
    confirmed: wire.Epoch | None = None
    window: int = 0
    settled: int = 0
    done: wire.Done | None = None
    refused: wire.Refuse | None = None
    stuck: bool = False
    """Hangs in a batch: alive, without progress, deaf to what its control thread hears."""
    suspended: bool = False
    """Was told that the others go on without it."""
    blocked: str = ""
    """Cannot form a group with others, and says so in these words (``silent``: says nothing)."""
    heard: list[wire.Message] = field(default_factory=list)

    @property
    def over(self) -> bool:
        return self.done is not None or self.refused is not None


class Cohort:
    """The engine, its ranks and the clock."""

    def __init__(self, config: RunConfig | None = None, generation: int = 1) -> None:
        self.engine = Engine(config or run_config(), generation)
        self.now = 100.0
        self.ranks: dict[str, SimulatedRank] = {}
        self.epochs: list[wire.Epoch] = []
        self.to_agents: dict[str, list[wire.Message]] = {}

    # events

    def dial(self, ordinal: int, incarnation: int = 1, **rank_changes: object) -> SimulatedRank:
        """A member dials and its rank says Hello."""
        agent = agent_hello(ordinal, incarnation)
        self.deliver(self.engine.agent_hello(agent, self.now))
        uid = f"{agent.member_uid}/0"
        rank = self.ranks.setdefault(uid, SimulatedRank(uid))
        self.deliver(self.engine.rank_hello(rank_hello(agent, **rank_changes), self.now))
        return rank

    def kill(self, rank: SimulatedRank) -> None:
        """SIGKILL: the rank's socket closes."""
        del self.ranks[rank.uid]
        self.deliver(self.engine.rank_lost(rank.uid, self.now))

    def leave(self, rank: SimulatedRank) -> None:
        """SIGTERM."""
        self.deliver(self.engine.leave(rank.uid.split("/")[0], wire.Leave(reason=Ended.LEFT), self.now))

    def pass_time(self, seconds: float, silent: Iterable[SimulatedRank] = ()) -> None:
        """Time goes by; all but the silent ones send heartbeats."""
        quiet = {rank.uid for rank in silent}
        end = self.now + seconds
        while self.now < end:
            self.now += 0.2
            for rank in [rank for rank in self.ranks.values() if rank.uid not in quiet and not rank.over]:
                self.deliver(self.engine.heartbeat(rank.uid, self.beat(rank), self.now))
            self.deliver(self.engine.tick(self.now))

    def beat(self, rank: SimulatedRank) -> wire.Heartbeat:
        """Ranks finish a batch each 0.1 s. When one is stuck, the others stand in the reduce."""
        epoch = rank.epoch.epoch if rank.epoch is not None else 0
        progress, phase = int(self.now * 10), wire.Phase.TRAIN
        if rank.stuck:
            progress = -1
        elif rank.suspended or rank.epoch is None:
            progress, phase = -3, wire.Phase.WAIT
        elif any(other.stuck for other in self.training()):
            progress, phase = -2, wire.Phase.REDUCE
        return wire.Heartbeat(
            phase=phase, epoch=epoch, window=rank.window, progress=progress, batches=1 if rank.epoch is not None else 0
        )

    def window(self, final: bool = False) -> None:
        """The present members commit one window together, and switch where all of them may."""
        members = self.training()
        for rank in members:
            rank.window = max(other.window for other in members) + (rank is members[0])
        switch = all(rank.confirmed is not None for rank in members)
        for rank in members:
            assert rank.epoch is not None
            report = wire.WindowCommitted(
                epoch=rank.epoch.epoch, window=rank.window, samples=rank.window * 10, data_epoch=0, final=final
            )
            self.deliver(self.engine.committed(rank.uid, report, self.now))
        if switch:
            target = members[0].confirmed
            assert target is not None
            for uid in [member.uid for member in target.members]:
                self.ranks[uid].epoch, self.ranks[uid].confirmed = target, None
                self.ranks[uid].window = members[0].window
                self.ranks[uid].suspended = False
        self.pass_time(0.2)

    def finish(self, saved: Saved = Saved.SAVED) -> None:
        """All present members say that they are done."""
        for rank in self.training():
            assert rank.epoch is not None
            report = wire.Finished(epoch=rank.epoch.epoch, window=rank.window, saved=saved)
            self.deliver(self.engine.finished(rank.uid, report, self.now))

    def training(self) -> list[SimulatedRank]:
        """Members of the newest epoch that any living rank is in, in rank order."""
        living = [rank for rank in self.ranks.values() if rank.epoch is not None and not rank.over]
        if not living:
            return []
        newest = max((rank.epoch for rank in living if rank.epoch), key=lambda epoch: epoch.epoch)
        return [self.ranks[m.uid] for m in newest.members if m.uid in self.ranks and not self.ranks[m.uid].over]

    # messages

    def deliver(self, sends: Iterable[Send]) -> None:
        """Give messages to the simulated ranks, which answer as the protocol says."""
        for uid, message in sends:
            rank = self.ranks.get(uid)
            if "/" not in uid:
                self.to_agents.setdefault(uid, []).append(message)
            if rank is not None and not rank.over:
                rank.heard.append(message)
                self._answer(rank, message)

    def _answer(self, rank: SimulatedRank, message: wire.Message) -> None:
        if isinstance(message, wire.Epoch):
            if not any(known.epoch == message.epoch and known.planned == message.planned for known in self.epochs):
                self.epochs.append(message)
            planned_cause = message.cause in (wire.EpochCause.JOIN, wire.EpochCause.LEAVE)
            included = rank.uid in [member.uid for member in message.members]
            if message.cause is wire.EpochCause.SUSPEND and not included:
                rank.suspended = True
                return
            if not message.planned and planned_cause:
                rank.confirmed = message
                return
            if not message.planned:
                rank.epoch, rank.confirmed, rank.suspended = message, None, False
            if included:
                self._form(rank, message)
        elif isinstance(message, wire.EpochCancelled):
            if rank.confirmed is not None and rank.confirmed.epoch == message.epoch:
                rank.confirmed = None
        elif isinstance(message, wire.Settled):
            rank.settled = message.window
        elif isinstance(message, wire.Done):
            rank.done = message
        elif isinstance(message, wire.Refuse):
            rank.refused = message

    def _form(self, rank: SimulatedRank, epoch: wire.Epoch) -> None:
        """A group stands if nobody of it is blocked; who is not waits for those who are."""
        blocked = [self.ranks[m.uid].blocked for m in epoch.members if m.uid in self.ranks]
        if not any(blocked):
            self.deliver(self.engine.formed(rank.uid, wire.EpochFormed(epoch=epoch.epoch), self.now))
        elif rank.blocked not in ("", "silent"):
            report = wire.EpochFailed(epoch=epoch.epoch, message=rank.blocked)
            self.deliver(self.engine.forming_failed(rank.uid, report, self.now))
