"""Whether the network enforces the NetworkPolicies that the operator makes: tried on the coordinators of runs.

The policy of a run lets the operator reach one port of its coordinator's pod. The coordinator listens on a second one
as well. Both are dialled by this pod, one right after the other: where the first answers and the second does not, only
the policy can be why. It takes no right, and no pod of its own.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from fdl_api import names

logger = logging.getLogger(__name__)

DIAL_SECONDS: Final = 3.0
SETTLE_SECONDS: Final = 10.0
SETTLE_TRIES: Final = 6
"""A network plugin may need a while for a new pod's policy: an open port is believed only after a minute."""
AGAIN_SECONDS: Final = 1800.0
"""Plugins change: what was found is tried again as long as the run goes on."""


@dataclass(frozen=True, slots=True)
class Door:
    """A coordinator's pod with a port that should be closed.

    Attributes:
        run_uid: its run.
        node: its node.
        address: its IP address.
        closed_port: the port that the run's policy closes to the operator.
        port: the port that it leaves open.
    """

    run_uid: str
    node: str
    address: str
    closed_port: int
    port: int = names.COORDINATOR_PORT


async def is_open(address: str, port: int, seconds: float = DIAL_SECONDS) -> bool:
    """Whether a TCP connection comes to stand within so many seconds."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), seconds)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        await asyncio.wait_for(writer.wait_closed(), seconds)
    return True


async def enforced(door: Door) -> bool | None:
    """Whether the policy is in force; ``None`` when it cannot be known, since the pod does not answer at all."""
    if await is_open(door.address, door.closed_port):
        return False
    return True if await is_open(door.address, door.port) else None


class Policies:
    """Tries the policies of all runs; tells each finding with the coordinator's node, for that is where it is true."""

    def __init__(
        self, tell: Callable[[str, bool], None], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._tell = tell
        self._sleep = sleep
        self._tasks: dict[str, tuple[Door, asyncio.Task[None]]] = {}

    def ensure(self, door: Door) -> None:
        """Keep trying this one, instead of the run's earlier coordinator."""
        present = self._tasks.get(door.run_uid)
        if present is not None and present[0] == door and not present[1].done():
            return
        self.close(door.run_uid)
        task = asyncio.create_task(self._keep(door), name=f"policy-{door.run_uid}")
        self._tasks[door.run_uid] = (door, task)

    def close(self, run_uid: str) -> None:
        """Stop trying; what was found stays."""
        present = self._tasks.pop(run_uid, None)
        if present is not None:
            present[1].cancel()

    async def stop(self) -> None:
        """Stop trying everything."""
        tasks = [task for _, task in self._tasks.values()]
        for run_uid in list(self._tasks):
            self.close(run_uid)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, door: Door) -> None:
        open_before = 0
        while True:
            found = await enforced(door)
            if found is None:
                await self._sleep(SETTLE_SECONDS)
            elif found or open_before >= SETTLE_TRIES:
                open_before = 0 if found else open_before
                self._tell(door.node, found)
                await self._sleep(AGAIN_SECONDS)
            else:
                open_before += 1
                await self._sleep(SETTLE_SECONDS)
