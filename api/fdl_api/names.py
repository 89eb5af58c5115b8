"""Names of the objects that belong to a run, and the length that a run's name may have.

A pod's name becomes a host name and a label value, so the longest derived name must fit 63 characters.
"""

from typing import Final

MAX_NAME: Final = 63
MAX_ORDINAL: Final = 9999
MAX_INCARNATION: Final = 99999
COORDINATOR_PORT: Final = 7337
CLOSED_PORT: Final = 7338
"""Second port of a coordinator's pod, on which nobody talks: the run's NetworkPolicy closes it to the operator, which
tries it to learn whether the network enforces policies."""

RUN_FILE: Final = "/etc/fdl/run/run.json"
TOKEN_FILE: Final = "/etc/fdl/secret/token"  # noqa: S105 - a path, not a token
CA_FILE: Final = "/etc/fdl/secret/ca.crt"
CERT_FILE: Final = "/etc/fdl/secret/tls.crt"
KEY_FILE: Final = "/etc/fdl/secret/tls.key"
CHECKPOINT_DIR: Final = "/fdl/checkpoints"
SCRIPT_DIR: Final = "/fdl/script"
NCCL_DIR: Final = "/fdl/nccl"
"""Where a member whose NCCL is bridged finds the library."""
VARIANT_FILE: Final = "/opt/fdl/variant.json"
TRAINER_CONTAINER: Final = "trainer"
"""The container of a member's pod in which its script runs."""


def member_pod(run: str, cohort: str, ordinal: int, incarnation: int) -> str:
    """Name of one incarnation of a member's pod."""
    return f"{run}-{cohort}-{ordinal}-{incarnation}"


def coordinator_pod(run: str, incarnation: int) -> str:
    """Name of one incarnation of the coordinator's pod."""
    return f"{run}-coordinator-{incarnation}"


def coordinator_service(run: str) -> str:
    """Name of the Service in front of the coordinator."""
    return f"{run}-coordinator"


def coordinator_host(run: str, namespace: str) -> str:
    """DNS name by which members and the operator dial the coordinator; the certificate names it too."""
    return f"{coordinator_service(run)}.{namespace}.svc"


def secret(run: str) -> str:
    """Name of the Secret with the run token and certificates."""
    return f"{run}-run"


def config_map(run: str) -> str:
    """Name of the ConfigMap with the resolved run."""
    return f"{run}-run"


def network_policy(run: str) -> str:
    """Name of the run's NetworkPolicy."""
    return f"{run}-run"


def disruption_budget(run: str) -> str:
    """Name of the run's PodDisruptionBudget."""
    return f"{run}-run"


def seat(cohort: str, ordinal: int) -> str:
    """Name of a member's place in a run, the same for all its incarnations."""
    return f"{cohort}-{ordinal}"
