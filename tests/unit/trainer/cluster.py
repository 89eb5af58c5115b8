"""A run of real processes on loopback: the coordinator, and for each member an agent with its ranks.

Everything that a pod gets by mounts and the downward API comes by the same variables here. All processes are started in
sessions of their own and ended by id.
"""

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fdl_api.run import CheckpointSpec, ElcheSpec, FailurePolicySpec, JoinSpec, Mode
from fdl_api.runconfig import CohortConfig, MemberEnv, RunConfig, ScriptConfig
from fdl_api.termination import Termination, parse
from fdl_trainer.agent import TERMINATION_FILE_VARIABLE
from fdl_trainer.audit import Proof, prove

HOST = "digits-coordinator.team.svc"
STARTED_LIMIT = 90.0
ENDED_LIMIT = 120.0


def wait_for(what: str, condition: Callable[[], Any], seconds: float = STARTED_LIMIT, period: float = 0.02) -> Any:
    """Wait until a condition gives something true, and return that."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        value = condition()
        if value:
            return value
        time.sleep(period)
    raise AssertionError(f"waited {seconds:.0f} s in vain: {what}")


class Process(Protocol):
    """What a member's agent is to the tests: a process of :mod:`subprocess`, or one that a zygote forked."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...
    def send_signal(self, sig: int) -> None: ...


class Forked:
    """A process that the zygote forked."""

    def __init__(self, connection: socket.socket) -> None:
        self._lines = connection.makefile()
        self._connection = connection
        self.pid = int(self._lines.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.001)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self.returncode = int(self._lines.readline())
        return self.returncode

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, sig: int) -> None:
        """Send a signal, if it lives."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sig)


class Zygote:
    """Starts members in milliseconds (see zygote.py)."""

    def __init__(self, folder: Path) -> None:
        self._path = str(folder / "zygote")
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("zygote.py")), self._path],
            stdin=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        wait_for("the zygote has loaded torch", Path(self._path).exists)

    def start(self, environment: dict[str, str], log: Path) -> Forked:
        """Fork a member."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._path)
        connection.sendall(json.dumps({"env": environment, "log": str(log)}).encode() + b"\n")
        return Forked(connection)

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


@dataclass
class MemberProcess:
    """One incarnation of a member."""

    name: str
    uid: str
    ordinal: int
    incarnation: int
    agent: Process
    log: Path
    termination_file: Path

    def ranks(self) -> list[int]:
        """Process ids of its ranks."""
        path = Path(f"/proc/{self.agent.pid}/task/{self.agent.pid}/children")
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    def signal_ranks(self, number: signal.Signals) -> None:
        """Send a signal to all its ranks."""
        for pid in self.ranks():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """SIGKILL of everything, as when a node dies."""
        ranks = self.ranks()
        for pid in [self.agent.pid, *ranks]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.agent.wait(10)

    def terminate(self) -> None:
        """SIGTERM to PID 1, as the kubelet does."""
        self.agent.send_signal(signal.SIGTERM)

    def wait(self, seconds: float = ENDED_LIMIT) -> int:
        """Its exit code."""
        try:
            return self.agent.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end in {seconds:.0f} s:\n{self.tail()}") from None

    def words(self) -> Termination:
        """Its termination message."""
        words = parse(self.termination_file.read_text())
        assert words is not None, self.tail()
        return words

    def tail(self, lines: int = 40) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


@dataclass
class LoopbackRun:
    """A run and its processes."""

    folder: Path
    config: RunConfig
    zygote: Zygote | None = None
    coordinator: subprocess.Popen[bytes] | None = None
    generation: int = 0
    members: list[MemberProcess] = field(default_factory=list)

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

    def digests(self) -> dict[str, str]:
        """Digest of the final model by log name, as the ranks printed it."""
        found = {}
        for path in sorted(self.folder.glob("digits-cpu-*.log")):
            for line in path.read_text(errors="replace").splitlines():
                if line.startswith("digest "):
                    found[path.name] = line.split()[1]
        return found

    def first_audit(self) -> Path:
        """The first member's index log."""
        return self.checkpoints / "audit" / f"{self.members[0].name}-0.jsonl"

    def proof(self, samples: int, epochs: int) -> Proof:
        """What the index logs prove."""
        return prove(self.checkpoints.glob("audit/*.jsonl"), samples, epochs)

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
            with urllib.request.urlopen(request, timeout=5, context=context) as answer:
                state = json.loads(answer.read())
        except OSError:
            return {}
        assert isinstance(state, dict)
        return state

    def wait_state(self, what: str, condition: Callable[[dict[str, Any]], Any], seconds: float = STARTED_LIMIT) -> Any:
        """Wait until the snapshot meets a condition."""
        try:
            return wait_for(what, lambda: (state := self.state()) and condition(state) and state, seconds, 0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}\nstate: {self.state()}\n{self.logs()}") from None

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
def loopback_run(
    folder: Path,
    script: Path,
    members: int,
    args: list[str] | None = None,
    zygote: Zygote | None = None,
    **changes: Any,
) -> Iterator[LoopbackRun]:
    """A run with its coordinator started and no member yet; everything is ended at the end."""
    values: dict[str, Any] = {
        "name": "digits",
        "namespace": "team",
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
        "script": ScriptConfig(path=str(script), args=args or []),
    }
    run = LoopbackRun(folder, RunConfig.model_validate({**values, **changes}), zygote)
    run.write_files()
    try:
        run.start_coordinator()
        yield run
    finally:
        run.close()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make_certificates(folder: Path) -> None:
    """The run's authority and the coordinator's certificate, as the operator makes them."""
    now = datetime.now(UTC)
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "digits authority")])
    days = timedelta(days=2)

    def builder(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority_name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - days)
            .not_valid_after(now + days)
        )

    authority = (
        builder(authority_name, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    certificate = (
        builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "coordinator")]), key.public_key())
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    (folder / "ca.crt").write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    (folder / "tls.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "tls.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
