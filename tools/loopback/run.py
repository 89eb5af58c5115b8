"""A run on loopback: the coordinator, and for each member an agent with its ranks.

Everything that a pod gets by mounts and the downward API comes by the same variables here.
"""

import contextlib
import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from fdl_api.run import CheckpointSpec, ElcheSpec, FailurePolicySpec, JoinSpec, Mode
from fdl_api.runconfig import CohortConfig, MemberEnv, RunConfig, ScriptConfig
from fdl_trainer.agent import TERMINATION_FILE_VARIABLE
from tools.loopback.certificates import HOST, NAMESPACE, RUN, make_certificates
from tools.loopback.processes import STARTED_LIMIT, LoopbackError, MemberProcess, Process, Zygote, wait_for

Run = TypeVar("Run", bound="LoopbackRun")


@dataclass
class LoopbackRun:
    """A run and its processes.

    Attributes:
        scratch: where its processes put temporary files, which killed ones leave; the system's place when empty.
    """

    folder: Path
    config: RunConfig
    zygote: Zygote | None = None
    coordinator: subprocess.Popen[bytes] | None = None
    generation: int = 0
    members: list[MemberProcess] = field(default_factory=list)
    scratch: str = ""

    # files

    @property
    def checkpoints(self) -> Path:
        """The run's checkpoint directory."""
        assert self.config.checkpoint_dir is not None
        return Path(self.config.checkpoint_dir)

    def write_files(self) -> None:
        """Run file, token and certificates."""
        (self.folder / "run.json").write_text(self.config.model_dump_json(by_alias=True))
        if not (self.folder / "token").exists():
            (self.folder / "token").write_text(secrets.token_hex(32))
            make_certificates(self.folder)

    # processes

    def environment(self, **more: str) -> dict[str, str]:
        """What every process of the run is given."""
        return {
            **os.environ,
            "FDL_LOG_LEVEL": "INFO",
            MemberEnv.RUN_FILE: str(self.folder / "run.json"),
            MemberEnv.TOKEN_FILE: str(self.folder / "token"),
            MemberEnv.CA_FILE: str(self.folder / "ca.crt"),
            MemberEnv.CERT_FILE: str(self.folder / "tls.crt"),
            MemberEnv.KEY_FILE: str(self.folder / "tls.key"),
            MemberEnv.COORDINATOR: f"127.0.0.1:{self.config.coordinator_port}",
            MemberEnv.ATTEMPT: str(self.config.attempt),
            MemberEnv.CPU_LIMIT: "1000",
            "FDL_LISTEN": "127.0.0.1",
            "OMP_NUM_THREADS": "1",
            **({"TMPDIR": self.scratch} if self.scratch else {}),
            **more,
        }

    def start_coordinator(self) -> None:
        """Start the coordinator's next incarnation."""
        self.generation += 1
        log = (self.folder / f"coordinator-{self.generation}.log").open("wb")
        environment = self.environment(**{MemberEnv.GENERATION: str(self.generation)})
        self.coordinator = subprocess.Popen(
            [sys.executable, "-m", "fdl_coordinator"],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        wait_for("the coordinator listens", self._listens, 30)

    def kill_coordinator(self) -> None:
        """SIGKILL."""
        assert self.coordinator is not None
        self.coordinator.kill()
        self.coordinator.wait(10)

    def start_member(self, ordinal: int, incarnation: int = 1, grace: float = 30.0, **more: str) -> MemberProcess:
        """Start a member's agent."""
        name = f"digits-cpu-{ordinal}-{incarnation}"
        uid = f"uid-{self.config.attempt}-{ordinal}-{incarnation}"
        log = self.folder / f"{name}-{self.config.attempt}.log"
        termination = self.folder / f"{name}-{self.config.attempt}.termination"
        environment = self.environment(
            **{
                MemberEnv.MEMBER: name,
                MemberEnv.MEMBER_UID: uid,
                MemberEnv.COHORT: "cpu",
                MemberEnv.ORDINAL: str(ordinal),
                MemberEnv.INCARNATION: str(incarnation),
                MemberEnv.NODE: f"node-{ordinal}",
                MemberEnv.POD_IP: "127.0.0.1",
                MemberEnv.GRACE_SECONDS: str(grace),
                TERMINATION_FILE_VARIABLE: str(termination),
                **more,
            }
        )
        agent: Process
        if self.zygote is not None:
            agent = self.zygote.start(environment, log)
        else:
            agent = subprocess.Popen(
                [sys.executable, "-m", "fdl_trainer.agent"],
                env=environment,
                stdout=log.open("wb"),
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        member = MemberProcess(name, uid, ordinal, incarnation, agent, log, termination)
        self.members.append(member)
        return member

    def close(self) -> None:
        """End everything that was started."""
        for member in self.members:
            if member.agent.poll() is None:
                member.signal_ranks(signal.SIGCONT)
                member.kill()
        if self.coordinator is not None and self.coordinator.poll() is None:
            self.kill_coordinator()

    # what is seen from outside

    def state(self) -> dict[str, Any]:
        """The coordinator's snapshot; empty while it does not answer."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(self.folder / "ca.crt")
        request = urllib.request.Request(
            f"https://127.0.0.1:{self.config.coordinator_port}/state.json",
            headers={"Authorization": f"Bearer {(self.folder / 'token').read_text()}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=5, context=context) as answer:  # noqa: S310 - built here
                state = json.loads(answer.read())
        except OSError:
            return {}
        assert isinstance(state, dict)
        return state

    def wait_state(self, what: str, condition: Callable[[dict[str, Any]], Any], seconds: float = STARTED_LIMIT) -> Any:
        """Wait until the snapshot meets a condition."""
        try:
            return wait_for(what, lambda: (state := self.state()) and condition(state) and state, seconds, 0.1)
        except LoopbackError as error:
            raise LoopbackError(f"{error}\nstate: {self.state()}\n{self.logs()}") from None

    def logs(self, lines: int = 25) -> str:
        """The ends of all logs."""
        paths = sorted(self.folder.glob("*.log"))
        return "\n".join(
            f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) for path in paths
        )

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.config.coordinator_port)) == 0


@contextlib.contextmanager
def started(run: Run) -> Iterator[Run]:
    """A run with its coordinator started and no member yet; everything is ended at the end."""
    run.write_files()
    # Not in the run's own folder: the path of a socket has 107 characters, and those of tests are long.
    with tempfile.TemporaryDirectory(prefix="fdl-run-", ignore_cleanup_errors=True) as run.scratch:
        try:
            run.start_coordinator()
            yield run
        finally:
            run.close()


def run_values(folder: Path, script: Path, members: int, args: list[str]) -> dict[str, Any]:
    """Values of a :class:`~fdl_api.runconfig.RunConfig`; callers change what they need."""
    return {
        "name": RUN,
        "namespace": NAMESPACE,
        "run_uid": "run-1",
        "attempt": 1,
        "mode": Mode.CPU_CADENCE,
        "coordinator_host": HOST,
        "coordinator_port": free_port(),
        "cohorts": [CohortConfig(name="cpu", vendor="cpu", min_replicas=1, max_replicas=8, devices_per_replica=1)],
        "join": JoinSpec(min_members=1, target_members=members, window_seconds=60, cap_seconds=120),
        "elche": ElcheSpec(anchor=2, max_anchor=4),
        "checkpoint": CheckpointSpec(claim="claim", interval_seconds=3600),
        "checkpoint_dir": str(folder / "checkpoints"),
        "audit": True,
        "failure_policy": FailurePolicySpec(),
        "script": ScriptConfig(path=str(script), args=args),
    }


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
