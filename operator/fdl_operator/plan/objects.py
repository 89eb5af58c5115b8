"""The objects around a run's pods: which should exist, and whether they are as they should be.

Each carries the hash of everything that it is built from, so that an unchanged object costs neither a build nor a
call, also after a restart of the operator.
"""

import hashlib
import json

from fdl_api import names
from fdl_api.version import VERSION
from fdl_operator.model import ApplyObject, DeleteObject, ObjectKind, RunRecord
from fdl_operator.plan import network
from fdl_operator.plan.draft import Draft

MOUNTED = frozenset({ObjectKind.CONFIG_MAP})
"""What pods mount, besides the Secret: no pod is created while it is refused, or it might start with another run's."""


def ensure(draft: Draft) -> None:
    """Apply what is missing or different, and delete what is no longer wanted."""
    for kind, spec_hash in desired(draft).items():
        owned = draft.snapshot.owned.get((kind, object_name(kind, draft.snapshot.run.name)))
        if spec_hash is None:
            if owned is not None:
                draft.deletes.append(DeleteObject(kind=kind, name=owned.name, uid=owned.uid))
        elif owned is None or owned.spec_hash != spec_hash:
            _apply(draft, kind, spec_hash)


def desired(draft: Draft) -> dict[ObjectKind, str | None]:
    """Hash of what each object is built from; ``None`` for one that should not exist."""
    run = draft.snapshot.run
    minimum = draft.spec.join.min_members
    return {
        ObjectKind.CONFIG_MAP: _digest(run, draft.attempt, draft.must_resume, *network.versions(draft)),
        ObjectKind.SERVICE: _digest(run, draft.coordinator.incarnation, spec=False),
        ObjectKind.NETWORK_POLICY: None if draft.spec.network.policy == "none" else _digest(run, spec=False),
        ObjectKind.DISRUPTION_BUDGET: _digest(run, minimum, spec=False) if draft.wanted_total > minimum else None,
    }


def refused(draft: Draft) -> bool:
    """Whether something that pods mount was refused a moment ago."""
    failures = [draft.snapshot.failures.get(child_key(kind)) for kind in MOUNTED]
    return any(failure is not None and failure.retry_at > draft.now for failure in failures)


def object_name(kind: ObjectKind, run: str) -> str:
    """Name of one of a run's objects."""
    if kind is ObjectKind.CONFIG_MAP:
        return names.config_map(run)
    if kind is ObjectKind.SERVICE:
        return names.coordinator_service(run)
    if kind is ObjectKind.NETWORK_POLICY:
        return names.network_policy(run)
    return names.disruption_budget(run)


def child_key(kind: ObjectKind) -> str:
    """Name under which a refused object is remembered."""
    return f"{kind}"


def _apply(draft: Draft, kind: ObjectKind, spec_hash: str) -> None:
    failure = draft.snapshot.failures.get(child_key(kind))
    if failure is not None and failure.retry_at > draft.now:
        draft.wakes.append(failure.retry_at)
        return
    draft.applies.append(ApplyObject(kind=kind, spec_hash=spec_hash, must_resume=draft.must_resume))


def _digest(run: RunRecord, *parts: object, spec: bool = True) -> str:
    material = [VERSION, run.uid, run.generation if spec else 0, *parts]
    return hashlib.sha256(json.dumps(material).encode()).hexdigest()[:16]
