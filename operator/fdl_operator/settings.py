"""Settings of the operator, from environment variables that the chart sets (docs/reference/operator-settings.md)."""

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DEFAULT_COORDINATOR_RESOURCES: dict[str, Any] = {
    "requests": {"cpu": "50m", "memory": "96Mi"},
    "limits": {"memory": "512Mi"},
}


class SettingsError(ValueError):
    """An environment variable has a value that cannot be used; the message names it and the way out."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Figures that the rules use, all in seconds unless the name says otherwise."""

    report_age: float = 600.0
    """New pods are kept off nodes whose prober report is older than this."""
    termination_timeout: float = 30.0
    """How long after its grace period a pod may stay Terminating before its seat gets a successor."""
    member_hang: float = 60.0
    """How long a member that the coordinator calls dead may go on running before its pod is deleted."""
    coordinator_lost: float = 20.0
    """How long a coordinator on a NotReady node may be silent before it is replaced."""
    suspend_timeout: float = 180.0
    """How long a suspended run may take to save before its pods are deleted anyway."""
    give_up_timeout: float = 180.0
    """How long a run that is given up may take to save before it fails anyway."""
    finish_timeout: float = 30.0
    """How long pods of a finished run may take to end by themselves before they are deleted."""
    unschedulable: float = 30.0
    """How long a pod may stay unschedulable before its placement is planned anew."""
    secret_check: float = 300.0
    """How often the Secret of a run that needs no new pod is looked at, since it may not be watched; 0 for never."""
    training_interval: float = 10.0
    """Fewest seconds between two writes of the training status of one run."""
    training_writes_per_second: float = 20.0
    """Training status writes a second over all runs."""
    create_retry: float = 5.0
    """First wait after a child could not be created; doubles up to ``create_retry_max``."""
    create_retry_max: float = 300.0
    app_backoff: float = 10.0
    """First wait before a seat is filled again after its program failed; doubles up to ``app_backoff_max``."""
    app_backoff_max: float = 300.0
    infrastructure_backoff: float = 5.0
    """The same from the second holder of a seat in a row that did not last; the first one is replaced at once."""
    coordinator_backoff_max: float = 60.0
    restart_backoff: float = 15.0
    """First wait of a run that gave its seats back before it tries again; doubles, with jitter."""
    restart_backoff_max: float = 300.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that the operator is told from outside."""

    namespace: str = "fdl-system"
    identity: str = "fdl-operator"
    operator_image: str = ""
    variants: tuple[dict[str, Any], ...] = ()
    """Entries of FdlCluster spec.variants for the FdlCluster/default that the operator creates."""
    image_pull_secrets: tuple[str, ...] = ()
    image_pull_policy: str = "IfNotPresent"
    watch_namespaces: tuple[str, ...] = ()
    """Empty: all namespaces."""
    coordinator_resources: dict[str, Any] = field(default_factory=lambda: dict(DEFAULT_COORDINATOR_RESOURCES))
    lease_name: str = "fdl-operator"
    health_port: int = 8080
    workers: int = 16
    pod_parallelism: int = 16
    qps: float = 100.0
    burst: int = 200
    limits: Limits = field(default_factory=Limits)
    log_level: str = "INFO"
    in_pod: bool = False
    """Whether the operator is a pod of the cluster, so that NetworkPolicies concern it."""


def from_env(env: Mapping[str, str] | None = None) -> Settings:
    """Read the settings.

    Args:
        env: the environment; the process's own when ``None``.

    Raises:
        SettingsError: a variable does not parse.
    """
    source = os.environ if env is None else env
    default = Limits()
    limits = Limits(
        report_age=_number(source, "FDL_REPORT_AGE_SECONDS", default.report_age),
        termination_timeout=_number(source, "FDL_TERMINATION_TIMEOUT_SECONDS", default.termination_timeout),
        member_hang=_number(source, "FDL_MEMBER_HANG_SECONDS", default.member_hang),
        suspend_timeout=_number(source, "FDL_SUSPEND_TIMEOUT_SECONDS", default.suspend_timeout),
        give_up_timeout=_number(source, "FDL_GIVE_UP_TIMEOUT_SECONDS", default.give_up_timeout),
        finish_timeout=_number(source, "FDL_FINISH_TIMEOUT_SECONDS", default.finish_timeout),
        secret_check=_number(source, "FDL_SECRET_CHECK_SECONDS", default.secret_check),
        training_interval=_number(source, "FDL_TRAINING_INTERVAL_SECONDS", default.training_interval),
    )
    return Settings(
        namespace=source.get("FDL_NAMESPACE") or "fdl-system",
        identity=source.get("POD_NAME") or socket.gethostname(),
        operator_image=source.get("FDL_OPERATOR_IMAGE", ""),
        variants=tuple(_json(source, "FDL_VARIANTS", list, [])),
        image_pull_secrets=_words(source.get("FDL_IMAGE_PULL_SECRETS", "")),
        image_pull_policy=source.get("FDL_IMAGE_PULL_POLICY") or "IfNotPresent",
        watch_namespaces=_words(source.get("FDL_WATCH_NAMESPACES", "")),
        coordinator_resources=_json(source, "FDL_COORDINATOR_RESOURCES", dict, DEFAULT_COORDINATOR_RESOURCES),
        lease_name=source.get("FDL_LEASE_NAME") or "fdl-operator",
        health_port=int(_number(source, "FDL_HEALTH_PORT", 8080)),
        workers=int(_number(source, "FDL_WORKERS", 16)),
        qps=_number(source, "FDL_QPS", 100.0),
        burst=int(_number(source, "FDL_BURST", 200)),
        limits=limits,
        log_level=source.get("FDL_LOG_LEVEL") or "INFO",
        in_pod=bool(source.get("KUBERNETES_SERVICE_HOST")),
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.replace(",", " ").split() if word)


def _number(source: Mapping[str, str], name: str, default: float) -> float:
    text = source.get(name, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        raise SettingsError(f"{name}: {text!r} is not a number; set it to a number or leave it out") from None
    if value < 0:
        raise SettingsError(f"{name}: {text} is negative; set it to zero or more")
    return value


def _json(source: Mapping[str, str], name: str, kind: type, default: Any) -> Any:
    text = source.get(name, "")
    if not text.strip():
        return default
    try:
        value = json.loads(text)
    except ValueError as error:
        raise SettingsError(f"{name}: is not JSON ({error}); the chart writes it from values") from None
    if not isinstance(value, kind):
        raise SettingsError(f"{name}: must be a JSON {'array' if kind is list else 'object'}, got {text[:80]!r}")
    return value
