"""Which ways a rank tests, and when: each new one once, and all of them after a group that failed."""

import asyncio
import logging
import threading
from collections.abc import Collection, Coroutine, Sequence
from typing import Any, TypeVar

from fdl_api import wire
from fdl_trainer.pairs import exchange
from fdl_trainer.pairs.interface import keeps_to_itself

log = logging.getLogger(__name__)

AT_ONCE = 64
"""Ways that a rank tests side by side."""
TEST_SECONDS = 10.0
"""Time for all tests of an epoch; whoever had no turn by then is tested with the next one."""
SERVED = 1024
"""Connections that are served at a time."""
START_SECONDS = 5.0
REPORTED = 64
"""Broken ways in a report."""

_Result = TypeVar("_Result")

_URGENT = frozenset({wire.EpochCause.DEATH, wire.EpochCause.SUSPEND})
"""Epochs of ranks that have worked together: a test would only hold up the survivors."""


def due(epoch: wire.Epoch, uid: str, reached: Collection[str], *, doubtful: bool) -> list[wire.EpochMember]:
    """Members whose ways a rank tests before it forms an epoch's group, beginning with those after itself.

    Args:
        epoch: the epoch; the rank is a member of it.
        uid: of the rank.
        reached: UIDs of ranks that it has reached before.
        doubtful: whether the last group failed.
    """
    members = list(epoch.members)
    place = next(index for index, member in enumerate(members) if member.uid == uid)
    others = [member for member in [*members[place + 1 :], *members[:place]] if member.reach is not None]
    # Ranks of one pod share an address: there is no way between them that could be broken.
    others = [member for member in others if wire.member_of(member.uid) != wire.member_of(uid)]
    if doubtful or epoch.cause is wire.EpochCause.REFORM:
        return others
    if epoch.cause in _URGENT:
        return []
    return [member for member in others if member.uid not in reached]


class Pairs:
    """Answers the tests of others, and makes this rank's own.

    Args:
        uid: UID of this rank.
        key: of the run (:func:`~fdl_trainer.pairs.proof.key_of`).
        address: IP address to listen on.
    """

    def __init__(self, uid: str, key: bytes, address: str) -> None:
        self.reach: wire.Reach | None = None
        """Where this rank answers; None before the start, and when it cannot."""
        self._uid = uid
        self._key = key
        self._address = address
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fdl-pairs", daemon=True)
        self._lock = threading.Lock()
        self._reached: set[str] = set()
        self._doubtful = False
        self._serving = 0
        self._server: asyncio.Server | None = None

    def start(self) -> None:
        """Listen. A rank that cannot is not tested by others, and the run goes on without."""
        self._thread.start()
        try:
            port = self._do(self._listen(), START_SECONDS)
        except (OSError, TimeoutError) as error:
            log.warning("ways to this rank are not tested: it cannot listen on %s (%s)", self._address, error)
            return
        self.reach = wire.Reach(address=self._address, port=port)

    def test(self, epoch: wire.Epoch) -> wire.PairsTested | None:
        """Test the ways that are due for an epoch; None when none is (or this process is starved). Takes milliseconds
        where all is well.

        Args:
            epoch: about to be formed, with this rank.
        """
        with self._lock:
            members = due(epoch, self._uid, self._reached, doubtful=self._doubtful)
        if not members:
            return None
        try:
            own = next(member.address for member in epoch.members if member.uid == self._uid)
            found = self._do(self._dial_all(members, own), 2 * TEST_SECONDS)
        except TimeoutError:
            log.warning("epoch %d: the ways to %d ranks were not tested in time", epoch.epoch, len(members))
            return None
        broken = [way for way in found.values() if way is not None]
        with self._lock:
            self._reached |= {uid for uid, way in found.items() if way is None}
            self._reached -= {way.peer for way in broken}
        for way in broken[:REPORTED]:
            log.warning("epoch %d: no way to rank %s: %s %s", epoch.epoch, way.peer, way.fault, way.detail)
        return wire.PairsTested(epoch=epoch.epoch, broken=broken[:REPORTED], count=len(broken))

    def formed(self, stands: bool) -> None:
        """A group of this rank's stands, or could not be made: then nothing is taken for granted the next time."""
        with self._lock:
            self._doubtful = not stands

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._serve, self._address, 0, backlog=SERVED)
        port = self._server.sockets[0].getsockname()[1]
        assert isinstance(port, int)
        return port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._serving >= SERVED:
            writer.close()
            return
        self._serving += 1
        try:
            await exchange.answer(self._key, self._uid, reader, writer)
        finally:
            self._serving -= 1

    async def _dial_all(self, members: Sequence[wire.EpochMember], own: str) -> dict[str, wire.BrokenPair | None]:
        """What each test that ended in time found, by UID."""
        turn = asyncio.Semaphore(AT_ONCE)

        async def one(member: wire.EpochMember) -> wire.BrokenPair | None:
            assert member.reach is not None
            if why := keeps_to_itself(member, own):
                return wire.BrokenPair(peer=member.uid, fault=wire.PairFault.NO_ROUTE, detail=why)
            async with turn:
                return await exchange.dial(self._key, member.uid, member.reach)

        tasks = {member.uid: asyncio.create_task(one(member)) for member in members}
        done, late = await asyncio.wait(tasks.values(), timeout=TEST_SECONDS)
        for task in late:
            task.cancel()
        return {uid: task.result() for uid, task in tasks.items() if task in done}

    def _do(self, work: Coroutine[Any, Any, _Result], seconds: float) -> _Result:
        """Run a coroutine in the thread of this object and wait for it; raises TimeoutError."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)
