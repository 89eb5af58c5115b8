"""What the engine keeps up for a run besides its objects."""

import asyncio
import dataclasses
import datetime

from fdl_api.names import CLOSED_PORT, coordinator_host
from fdl_operator.build.pki import new_keys
from fdl_operator.engine import Engine
from fdl_operator.model import StreamView
from fdl_operator.settings import Settings

from .builders import UID, World

STREAM = f"stream-{coordinator_host('run', 'ns')}"


def tasks() -> set[str]:
    return {name for task in asyncio.all_tasks() if (name := task.get_name()).startswith(("stream-", "policy-"))}


async def test_a_run_that_is_being_deleted_is_neither_listened_to_nor_tried() -> None:
    world = World().training()
    world.change("run-coordinator-1", ip="127.0.0.1")
    engine = Engine(None, Settings(in_pod=True), lambda: world.now)  # type: ignore[arg-type] - nothing is asked
    store = engine.store
    store.put_run(world.run)
    for pod in world.pods.values():
        store.put_pod(f"ns/{pod.name}", pod)
    for record in world.owned.values():
        store.put_owned(f"ns/{record.name}", record)
    store.keys[UID] = new_keys("run", "ns", datetime.datetime.now(datetime.UTC))
    snapshot = store.snapshot(world.run.key)
    assert snapshot is not None
    engine._tend_stream(snapshot)
    assert tasks() == {STREAM}
    store.put_stream(UID, StreamView(connected=True, closed_port=CLOSED_PORT))
    engine._tend_stream(snapshot)
    assert tasks() == {STREAM, f"policy-{UID}"}
    store.put_run(dataclasses.replace(world.run, deleting=True, resource_version="99"))
    await engine.reconcile(world.run.key)
    await asyncio.sleep(0)
    assert tasks() == set()
    await engine.stop()
