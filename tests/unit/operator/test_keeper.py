"""The keeper of FdlCluster towards an API server that refuses."""

import datetime
from typing import Any

import pytest

from fdl_api.cluster import FdlClusterSpec, FdlClusterStatus, QuarantineStatus
from fdl_api.report import Report
from fdl_operator import clock, keeper
from fdl_operator.client import ApiError, Resource
from fdl_operator.keeper import REFUSED_SECONDS, ClusterKeeper
from fdl_operator.plan.cluster import ClusterRecord
from fdl_operator.settings import Limits, Settings
from fdl_operator.store import Store
from tests.unit.nodes import T0, node_of

SPEC = FdlClusterSpec.model_validate({"quarantine": {"taint": True, "nodes": [{"name": "n1"}]}})


class Refusing:
    """An API server that lets nobody taint."""

    def __init__(self) -> None:
        self.patches = 0
        self.events: list[str] = []

    async def patch(self, *_: object) -> None:
        self.patches += 1
        raise ApiError(403, "Forbidden", "no")

    async def create(self, _resource: Resource, _namespace: str, body: dict[str, Any]) -> None:
        self.events.append(body["reason"])

    async def apply(self, _resource: Resource, _namespace: str, body: dict[str, Any], *, subresource: str) -> Any:
        return body | {"metadata": body["metadata"] | {"resourceVersion": "2"}, "spec": SPEC.to_dict()}


async def test_a_right_that_is_missing_is_told_once_and_asked_for_now_and_then() -> None:
    client, seen = Refusing(), [ClusterRecord("default", "u", 1, "1", SPEC, FdlClusterStatus())]
    store = Store(Limits(), lambda _key: None, lambda: T0)
    time = datetime.datetime.fromtimestamp(T0, datetime.UTC)
    store.put_node("/n1", node_of(Report(node="n1", time=time, ready=True)))
    keeps = ClusterKeeper(client, store, Settings(), seen.append)  # type: ignore[arg-type]
    for after in (0, 5, 60, REFUSED_SECONDS - 1, REFUSED_SECONDS + 1, REFUSED_SECONDS + 2):
        await keeps.reconcile(seen[-1], T0 + after)
    assert client.patches == 2 and client.events.count("TaintRefused") == 1


@pytest.mark.parametrize(("left", "wait"), [(None, 60), (3600, 60), (12, 12), (0, 1), (-5, 1)])
def test_the_end_of_a_quarantine_is_not_missed(left: float | None, wait: float) -> None:
    until = None if left is None else clock.render(T0 + left)
    row = QuarantineStatus(name="n", source="deep-check", since=clock.render(T0), until=until)
    assert keeper._wait([row], T0) == wait
