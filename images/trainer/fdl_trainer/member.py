"""What this process knows of itself: the resolved run, the member's environment, and the coordinator's address.

No torch here: the agent starts from it in a fraction of a second.
"""

import os
import ssl
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fdl_api import names
from fdl_api.runconfig import MemberEnv, RunConfig
from fdl_api.wire import rank_uid

SOLO_UID = "solo/0"
"""UID and place of a rank that trains alone, outside of any run."""


class ConfigurationError(RuntimeError):
    """The member's environment or files are not as the operator makes them; the message names the item."""


@dataclass(frozen=True)
class Endpoint:
    """Where the coordinator listens and how a member proves itself."""

    host: str
    port: int
    server_name: str
    token: str
    ca_file: Path

    def url(self, path: str) -> str:
        """WebSocket address of one of the coordinator's paths."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"wss://{host}:{self.port}{path}"

    def headers(self) -> dict[str, str]:
        """Headers of the dial."""
        return {"Authorization": f"Bearer {self.token}"}

    def tls(self) -> ssl.SSLContext:
        """Trust in the run's own authority and nobody else."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(self.ca_file)
        return context


@dataclass(frozen=True)
class Member:
    """One incarnation of a member, and (in a rank's process) which of its ranks this is."""

    config: RunConfig
    endpoint: Endpoint
    name: str
    uid: str
    cohort: str
    ordinal: int
    incarnation: int
    host: str
    address: str
    cpu_millicores: int | None
    grace_seconds: float
    local_rank: int = 0

    @property
    def rank_uid(self) -> str:
        """UID of this rank: unique over all incarnations."""
        return rank_uid(self.uid, self.local_rank)


def place_of(member: Member | None) -> str:
    """A rank's place in the run, the same for all incarnations; ``None`` trains alone."""
    return f"{member.cohort}-{member.ordinal}/{member.local_rank}" if member else SOLO_UID


def is_member(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process was started as part of a run."""
    return MemberEnv.LOCAL_RANK in environment


def from_environment(environment: Mapping[str, str] = os.environ) -> Member:
    """Read the resolved run and this member's place in it.

    Raises:
        ConfigurationError: a file or variable is missing or does not parse.
    """
    config = _run_config(Path(environment.get(MemberEnv.RUN_FILE, names.RUN_FILE)))
    attempt = environment.get(MemberEnv.ATTEMPT)
    if attempt is not None and _integer(MemberEnv.ATTEMPT, attempt) != config.attempt:
        raise ConfigurationError(
            f"{MemberEnv.ATTEMPT} is {attempt} and the run file is of attempt {config.attempt}: this pod was made for "
            "another attempt and will be replaced."
        )
    return Member(
        config=config,
        endpoint=_endpoint(config, environment),
        name=_need(environment, MemberEnv.MEMBER),
        uid=environment.get(MemberEnv.MEMBER_UID) or str(uuid.uuid4()),
        cohort=_need(environment, MemberEnv.COHORT),
        ordinal=_integer(MemberEnv.ORDINAL, _need(environment, MemberEnv.ORDINAL)),
        incarnation=_integer(MemberEnv.INCARNATION, environment.get(MemberEnv.INCARNATION, "1")),
        host=environment.get(MemberEnv.NODE, "unknown"),
        address=_need(environment, MemberEnv.POD_IP),
        cpu_millicores=_optional_integer(environment, MemberEnv.CPU_LIMIT),
        grace_seconds=float(environment.get(MemberEnv.GRACE_SECONDS, "30")),
        local_rank=_integer(MemberEnv.LOCAL_RANK, environment.get(MemberEnv.LOCAL_RANK, "0")),
    )


def _run_config(path: Path) -> RunConfig:
    try:
        return RunConfig.model_validate_json(path.read_text())
    except OSError as error:
        raise ConfigurationError(
            f"The run file {path} cannot be read ({error.strerror}): it is mounted from the run's ConfigMap."
        ) from error
    except ValueError as error:
        raise ConfigurationError(f"The run file {path} is not a resolved run of this fdl release: {error}") from error


def _endpoint(config: RunConfig, environment: Mapping[str, str]) -> Endpoint:
    token_file = Path(environment.get(MemberEnv.TOKEN_FILE, names.TOKEN_FILE))
    ca_file = Path(environment.get(MemberEnv.CA_FILE, names.CA_FILE))
    try:
        token = token_file.read_text().strip()
    except OSError as error:
        raise ConfigurationError(
            f"The run token {token_file} cannot be read ({error.strerror}): it is mounted from the run's Secret."
        ) from error
    if not ca_file.is_file():
        raise ConfigurationError(f"The run's authority {ca_file} is missing: it is mounted from the run's Secret.")
    host, port = config.coordinator_host, config.coordinator_port
    override = environment.get(MemberEnv.COORDINATOR)
    if override:
        host, _, text = override.rpartition(":")
        port = _integer(MemberEnv.COORDINATOR, text)
    return Endpoint(host.strip("[]"), port, config.coordinator_host, token, ca_file)


def _need(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise ConfigurationError(f"The variable {name} is not set: a member is started by the operator or by fdl join.")
    return value


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(f"The variable {name} is {text!r} and must be a whole number.") from None


def _optional_integer(environment: Mapping[str, str], name: str) -> int | None:
    return _integer(name, environment[name]) if environment.get(name) else None
