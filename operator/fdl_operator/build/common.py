"""What all objects of a run have in common."""

from typing import Any, Final

from fdl_api import labels
from fdl_api.version import GROUP_VERSION
from fdl_operator.model import RunRecord

Body = dict[str, Any]

USER: Final = 65532
"""User and group of all our containers, as in the images."""

POD_SECURITY: Final[Body] = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Final[Body] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def owner(run: RunRecord) -> Body:
    """The reference by which the garbage collector removes everything with the run.

    Without blockOwnerDeletion, which would need the right to set finalizers on runs.
    """
    return {
        "apiVersion": GROUP_VERSION,
        "kind": "FdlRun",
        "name": run.name,
        "uid": run.uid,
        "controller": True,
    }


def metadata(run: RunRecord, name: str, *, extra: dict[str, str] | None = None, spec_hash: str = "") -> Body:
    """Metadata of an object of a run."""
    body: Body = {
        "name": name,
        "namespace": run.namespace,
        "labels": {
            labels.MANAGED_BY: labels.MANAGED_BY_VALUE,
            labels.RUN: run.name,
            labels.RUN_UID: run.uid,
            **(extra or {}),
        },
        "ownerReferences": [owner(run)],
    }
    if spec_hash:
        body["annotations"] = {labels.SPEC_HASH: spec_hash}
    return body


def selector(run: RunRecord, **extra: str) -> dict[str, str]:
    """Labels that select pods of this run and of no other of the same name."""
    return {labels.RUN_UID: run.uid, **extra}
