"""PID 1 of a member: starts one process a device, keeps watch, and says how it ended.

``python -m fdl_trainer.agent``. It reaps every orphan of its container, passes SIGTERM on, gives the ranks their
time to leave and no more, reports each rank's end to the coordinator, and maps it to one of
:class:`fdl_api.exitcodes.PodExit` with a :class:`fdl_api.termination.Termination` in the termination message.
"""

import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fdl_api.exitcodes import PodExit
from fdl_api.reasons import Ended, Refusal
from fdl_api.run import RankSpans
from fdl_api.runconfig import MemberEnv
from fdl_api.termination import Cause, Saved, Termination, parse
from fdl_api.version import VERSION, WIRE_VERSION
from fdl_api.wire import AgentHello, Device, Leave, RankExited, Refuse
from fdl_trainer import devices as hardware
from fdl_trainer import signals
from fdl_trainer.agentlink import AgentLink
from fdl_trainer.inner.place import Place
from fdl_trainer.member import ConfigurationError, Member, from_environment
from fdl_trainer.preflight import preflight
from fdl_trainer.verdict import RankEnd, member_end, rank_end

log = logging.getLogger(__name__)

TERMINATION_FILE_VARIABLE = "FDL_TERMINATION_FILE"
DEFAULT_TERMINATION_FILE = "/dev/termination-log"
RESULT_FILE_VARIABLE = "FDL_RESULT_FILE"
"""Set by the agent for each rank: where it writes its last words."""
ADMISSION_LIMIT_SECONDS = 600.0
DONE_LIMIT_SECONDS = 30.0
"""Time that a rank has to end after the coordinator's Done."""
GOODBYE_SECONDS = 3.0
OWN_END_SECONDS = 1.0
"""Time that a rank has to end by itself once its member was given up: its own words say more."""
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)


@dataclass
class _Rank:
    local_rank: int
    pid: int
    result_file: Path
    oom_kills: int
    inner: int = 0
    """Number of the process in a rank that spans several devices; 0 leads."""
    forced: bool = False
    collateral: bool = False


@dataclass
class Agent:
    """One incarnation of a member."""

    member: Member
    scratch: Path
    environment: Mapping[str, str]
    link: AgentLink
    offered: list[Device]
    spanned: list[Device] = field(default_factory=list)
    """Devices that the only rank spans besides the offered one."""
    ranks: dict[int, _Rank] = field(default_factory=dict)
    ends: list[RankEnd] = field(default_factory=list)
    leave_deadline: float | None = None
    done_deadline: float | None = None

    def run(self) -> tuple[Termination, PodExit]:
        """Live until all ranks have ended or the member may not take part."""
        self.link.start()
        early = self._admission() or self._preflight()
        if early is not None:
            return early
        for device in self.offered:
            self._start(device)
        for inner, device in enumerate(self.spanned, start=1):
            self._start(device, inner)
        while self.ranks:
            self._wait(0.2)
            refused = self.link.state.refused
            if refused is not None:
                return self._end_refused(refused)
            self._watch_deadlines()
        self._report_ends()
        return member_end(self.ends)

    def _admission(self) -> tuple[Termination, PodExit] | None:
        state = self.link.state
        while not state.accepted:
            self._wait(0.05)
            if state.refused is not None:
                return refusal_end(state.refused)
            if self.leave_deadline is not None:
                text = "The member was asked to leave before the coordinator had admitted it."
                return Termination(cause=Cause.PREEMPTION, reason=Ended.LEFT, message=text), PodExit.LEFT
            if state.done is not None:
                text = state.done.message or "The run had ended before this member was admitted."
                return Termination(cause=Cause.PREEMPTION, reason=Ended.LEFT, message=text), PodExit.LEFT
            if self.link.silent_seconds() > ADMISSION_LIMIT_SECONDS:
                text = (
                    f"The coordinator at {self.member.endpoint.host}:{self.member.endpoint.port} did not admit this "
                    f"member within {ADMISSION_LIMIT_SECONDS:.0f} s; last: {state.problem[:600]}"
                )
                lost = Termination(cause=Cause.INFRASTRUCTURE, reason=Ended.COORDINATOR_LOST, message=text)
                return lost, PodExit.COORDINATOR_LOST
        return None

    def _preflight(self) -> tuple[Termination, PodExit] | None:
        """In NCCL modes, find out how this member's devices reach each other, and say it."""
        if not self.member.config.mode.is_nccl or len(self.offered) < 2:
            return None
        choice = preflight(self.offered, self.environment, self.member.host)
        log.info("%s", choice.sentence)
        if choice.level is None:
            text = choice.sentence[:1024]
            return Termination(cause=Cause.INFRASTRUCTURE, reason=Ended.REFUSED, message=text), PodExit.REFUSED
        self.environment = {**self.environment, **choice.environment}
        return None

    def _start(self, device: Device, inner: int = 0) -> None:
        local_rank = self.offered[0].index if inner else device.index
        result = self.scratch / f"rank-{device.index}.json"
        environment = {
            **self.environment,
            **hardware.visible(self.environment, device),
            MemberEnv.LOCAL_RANK: str(local_rank),
            MemberEnv.MEMBER_UID: self.member.uid,
            RESULT_FILE_VARIABLE: str(result),
            "PYTHONUNBUFFERED": "1",
            **self._place(inner),
        }
        pid = self._spawn(environment)
        log.info("rank %d%s started as process %d", local_rank, f", process {inner} of it," if inner else "", pid)
        self.ranks[pid] = _Rank(local_rank, pid, result, oom_kills(), inner)

    def _place(self, inner: int) -> dict[str, str]:
        """Where a process stands in a rank that spans the member; nothing where a rank is one process."""
        if not spans(self.member):
            return {}
        return Place(inner, 1 + len(self.spanned), self.scratch / "inner-store").environment()

    def _spawn(self, environment: dict[str, str]) -> int:
        command = [sys.executable, "-m", "fdl_trainer.rank"]
        return os.posix_spawn(sys.executable, command, environment, setsigmask=[], setsigdef=list(_SIGNALS))

    def _wait(self, seconds: float) -> None:
        came = signals.wait(_SIGNALS, seconds)
        if came is not None and came is not signal.SIGCHLD:
            self._leave(came.name)
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            rank = self.ranks.pop(pid, None)
            if rank is not None:  # anything else is an orphan that this process inherited as PID 1
                self._ended(rank, os.waitstatus_to_exitcode(status))

    def _ended(self, rank: _Rank, status: int) -> None:
        leads = any(not each.inner for each in self.ranks.values())
        if rank.inner and not leads:
            return  # with the process that led its rank, whose end says all
        words = rank.result_file.read_text() if rank.result_file.is_file() else None
        end = RankEnd(
            local_rank=rank.local_rank,
            inner=rank.inner,
            status=status,
            result=parse(words),
            out_of_memory=status == -signal.SIGKILL and oom_kills() > rank.oom_kills,
            forced=rank.forced,
            collateral=rank.collateral,
            given_up=self._given_up(rank),
            done=self.link.state.done,
        )
        self.ends.append(end)
        termination, code = rank_end(end)
        log.info("rank %d ended: %s (%s)", rank.local_rank, termination.message, code.name)
        if not end.collateral:
            self.link.send(self._exit_report(end, termination))
        well = code in (PodExit.DONE, PodExit.LEFT)
        if not well or spans(self.member):
            self._kill_all(collateral=True)  # all ranks of a dead rank's member are dead to the others

    def _given_up(self, rank: _Rank) -> str:
        """Why the coordinator gave this member up, where this agent killed the rank for that and for nothing else."""
        refused = self.link.state.refused
        first = all(end.collateral for end in self.ends)
        return refused.message if refused is not None and rank.collateral and first else ""

    def _exit_report(self, end: RankEnd, termination: Termination) -> RankExited:
        config = self.member.config
        return RankExited(
            run_uid=config.run_uid,
            attempt=config.attempt,
            member_uid=self.member.uid,
            local_rank=end.local_rank,
            exit_code=end.status,
            cause=termination.cause,
            reason=termination.reason,
            message=termination.message,
        )

    def _leave(self, name: str) -> None:
        if self.leave_deadline is None:
            budget = leave_budget(self.member.grace_seconds)
            log.info("%s: the ranks have %.1f s to leave", name, budget)
            self.leave_deadline = time.monotonic() + budget
            self.link.send(Leave(reason=Ended.PREEMPTED))
        for rank in self.ranks.values():
            if not rank.inner:  # else it goes when its leader has
                os.kill(rank.pid, signal.SIGTERM)

    def _watch_deadlines(self) -> None:
        now = time.monotonic()
        if self.link.state.done is not None and self.done_deadline is None:
            self.done_deadline = now + DONE_LIMIT_SECONDS
        over = [limit for limit in (self.leave_deadline, self.done_deadline) if limit is not None and now > limit]
        if over:
            self._kill_all(collateral=False)

    def _kill_all(self, *, collateral: bool) -> None:
        for rank in self.ranks.values():
            if not (rank.forced or rank.collateral):
                rank.forced, rank.collateral = not collateral, collateral
                os.kill(rank.pid, signal.SIGKILL)

    def _drain(self) -> None:
        limit = time.monotonic() + GOODBYE_SECONDS
        while self.ranks and time.monotonic() < limit:
            self._wait(0.05)

    def _end_refused(self, refused: Refuse) -> tuple[Termination, PodExit]:
        """The coordinator has given this member up. If a rank has just ended, that end is the reason."""
        limit = time.monotonic() + OWN_END_SECONDS
        while self.ranks and not self.ends and time.monotonic() < limit:
            self._wait(0.05)
        self._kill_all(collateral=True)
        self._drain()
        if all(end.collateral for end in self.ends):
            return refusal_end(refused)
        return member_end(self.ends)

    def _report_ends(self) -> None:
        self.link.close(GOODBYE_SECONDS)


def refusal_end(refused: Refuse) -> tuple[Termination, PodExit]:
    """The member's end after a refusal for good."""
    if refused.reason is Refusal.FENCED:
        fenced = Termination(cause=Cause.FENCED, reason=Ended.FENCED, message=refused.message[:1024], permanent=True)
        return fenced, PodExit.FENCED
    user = refused.reason in (Refusal.MODEL_MISMATCH, Refusal.DATASET_MISMATCH, Refusal.NO_CHECKPOINT)
    words = Termination(
        cause=Cause.APP if user else Cause.INFRASTRUCTURE,
        reason=refused.reason,
        message=refused.message[:1024],
        permanent=True,
    )
    return words, PodExit.REFUSED


def spans(member: Member) -> bool:
    """Whether the member's only rank spans all its devices."""
    cohort = member.config.cohort(member.cohort)
    return cohort is not None and cohort.rank_spans is RankSpans.MEMBER


def leave_budget(grace_seconds: float) -> float:
    """Seconds that ranks get of the pod's grace: all but a margin for the last words (a fifth, at most 5 s)."""
    return max(0.5, grace_seconds - min(5.0, grace_seconds / 5))


def oom_kills() -> int:
    """Processes of this container that the kernel has killed for memory; 0 where that cannot be read."""
    for path in (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control")):
        try:
            lines = [line.split() for line in path.read_text().splitlines()]
        except OSError:
            continue
        return sum(int(words[1]) for words in lines if len(words) == 2 and words[0] == "oom_kill")
    return 0


def hello_of(member: Member, offered: list[Device], image: hardware.Software) -> AgentHello:
    """What the agent says of its member."""
    return AgentHello(
        wire_version=WIRE_VERSION,
        fdl_version=VERSION,
        run_uid=member.config.run_uid,
        attempt=member.config.attempt,
        member_uid=member.uid,
        member=member.name,
        cohort=member.cohort,
        ordinal=member.ordinal,
        incarnation=member.incarnation,
        host=member.host,
        address=member.address,
        devices=offered,
        variant=image.variant,
        torch_version=image.torch,
        nccl_version=image.nccl,
    )


def live(environment: Mapping[str, str]) -> tuple[Termination, PodExit]:
    """Run one member, from its environment to its last words."""
    try:
        member = from_environment(environment)
        cohort = member.config.cohort(member.cohort)
        if cohort is None:
            raise ConfigurationError(f"{MemberEnv.COHORT} is {member.cohort!r}, which is no cohort of this run.")
        image = hardware.software()
        found, image = hardware.offer(cohort, image)
        ranks = 1 if spans(member) else len(found)
        offered = hardware.shared(found[:ranks], member.cpu_millicores)
    except (ConfigurationError, RuntimeError, ValueError) as error:
        words = Termination(cause=Cause.INFRASTRUCTURE, reason=Ended.INTERNAL, message=str(error)[:1024])
        return words, PodExit.INTERNAL
    with tempfile.TemporaryDirectory(prefix="fdl-agent-") as scratch:
        link = AgentLink(member.endpoint, hello_of(member, offered, image))
        agent = Agent(member, Path(scratch), dict(environment), link, offered, found[ranks:])
        try:
            return agent.run()
        finally:
            agent._kill_all(collateral=True)
            link.close(GOODBYE_SECONDS)


def main() -> int:
    """Entry point of a member's container."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    logging.basicConfig(
        level=os.environ.get("FDL_LOG_LEVEL", "INFO"), format="%(asctime)s agent %(levelname)s %(message)s"
    )
    try:
        termination, code = live(os.environ)
    except Exception as error:  # the last words must come whatever happens
        log.exception("the agent failed")
        text = f"The agent itself failed ({type(error).__name__}: {error})."[:1024]
        termination = Termination(cause=Cause.INFRASTRUCTURE, reason=Ended.INTERNAL, message=text, saved=Saved.NOTHING)
        code = PodExit.INTERNAL
    print(f"fdl: {termination.message}", flush=True)
    path = Path(os.environ.get(TERMINATION_FILE_VARIABLE, DEFAULT_TERMINATION_FILE))
    try:
        path.write_text(termination.render())
    except OSError as error:
        log.error("the termination message could not be written to %s: %s", path, error.strerror)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
