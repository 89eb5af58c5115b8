"""One test of the way from one rank to another, seen from either end.

The one that dials connects, both prove themselves in packets of some bytes, and then :data:`LARGE_BYTES` go there and
back: several packets of full size in each direction, which get lost where the MTU on the way is smaller than both ends
believe and nobody says so. A byte between the two tells which direction it is.
"""

import asyncio
import contextlib
import errno
import hmac
import os
from collections.abc import AsyncIterator

from fdl_api.wire import BrokenPair, PairFault, Reach
from fdl_trainer.pairs import proof

CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 3.0
"""Time for each step after the connection. A rank whose process cannot answer for so long is dead by its heartbeats."""
LARGE_BYTES = 64 * 1024
ARRIVED = b"\x01"
_SERVE_SECONDS = 2 * ANSWER_SECONDS + 2.0
_DETAIL = 200
_FAULTS = {
    errno.ETIMEDOUT: PairFault.TIMEOUT,
    errno.ECONNREFUSED: PairFault.REFUSED,
    errno.ECONNRESET: PairFault.CLOSED,
}
"""What a connection that is not made is; all other errors mean that there is no way."""


class _BrokenError(Exception):
    """The way is broken."""

    def __init__(self, fault: PairFault, detail: str = "") -> None:
        super().__init__(fault, detail)
        self.fault = fault
        self.detail = detail


async def dial(key: bytes, target: str, reach: Reach) -> BrokenPair | None:
    """Test the way to a rank.

    Args:
        key: of the run.
        target: UID of the rank.
        reach: where it listens.

    Returns:
        What is broken, or ``None``.
    """
    try:
        async with _connection(reach) as (reader, writer):
            await _dialler(key, target, reader, writer)
    except _BrokenError as error:
        return BrokenPair(peer=target, fault=error.fault, detail=error.detail[:_DETAIL])
    except (OSError, EOFError):
        return BrokenPair(peer=target, fault=PairFault.CLOSED)
    return None


async def answer(key: bytes, uid: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one test; whoever is not of the run gets a greeting, and zeros in place of a proof.

    Args:
        key: of the run.
        uid: of this rank.
        reader: of the connection.
        writer: of the connection, which is closed at the end.
    """
    try:
        # The dialler learns all that there is to tell from its own end.
        with contextlib.suppress(OSError, EOFError, TimeoutError):
            async with asyncio.timeout(_SERVE_SECONDS):
                await _listener(key, uid, reader, writer)
    finally:
        writer.transport.abort()  # what a broken way keeps back would be kept for minutes


async def _dialler(key: bytes, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async with _step(PairFault.SILENT):
        greeted = await reader.readexactly(proof.GREETING_BYTES)
        if not greeted.startswith(proof.MAGIC):
            raise _BrokenError(PairFault.FOREIGN)
        fresh = proof.nonce()
        writer.write(fresh + proof.dialled(key, target, greeted, fresh))
        theirs = await reader.readexactly(proof.PROOF_BYTES)
    if not hmac.compare_digest(theirs, proof.answered(key, target, greeted, fresh)):
        raise _BrokenError(PairFault.FOREIGN)
    sent = os.urandom(LARGE_BYTES)
    async with _step(PairFault.LARGE_OUT):
        writer.write(sent)
        await reader.readexactly(len(ARRIVED))
    async with _step(PairFault.LARGE_BACK):
        received = await reader.readexactly(LARGE_BYTES)
    if received != sent:
        raise _BrokenError(PairFault.FOREIGN, "the bytes came back changed")


async def _listener(key: bytes, uid: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    greeted = proof.greeting()
    writer.write(greeted)
    fresh = await reader.readexactly(proof.NONCE_BYTES)
    theirs = await reader.readexactly(proof.PROOF_BYTES)
    known = hmac.compare_digest(theirs, proof.dialled(key, uid, greeted, fresh))
    writer.write(proof.answered(key, uid, greeted, fresh) if known else bytes(proof.PROOF_BYTES))
    if not known:
        return
    received = await reader.readexactly(LARGE_BYTES)
    writer.write(ARRIVED)
    writer.write(received)
    await reader.read(1)  # until the other end has it all and closes: closing first could cut off what is on its way


@contextlib.asynccontextmanager
async def _connection(reach: Reach) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a rank; raises _BrokenError when it is not made."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(reach.address, reach.port, limit=2 * LARGE_BYTES)
    except TimeoutError as error:
        raise _BrokenError(PairFault.TIMEOUT, f"after {CONNECT_SECONDS:.0f} s") from error
    except OSError as error:
        fault = _FAULTS.get(error.errno or 0)
        raise (_BrokenError(fault) if fault is not None else _no_way(error)) from error
    try:
        yield reader, writer
    finally:
        writer.transport.abort()  # nothing of ours is on its way any more that matters


@contextlib.asynccontextmanager
async def _step(fault: PairFault) -> AsyncIterator[None]:
    """A step of a test: taking too long is this fault."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            yield
    except TimeoutError as error:
        raise _BrokenError(fault, f"for {ANSWER_SECONDS:.0f} s") from error


def _no_way(error: OSError) -> _BrokenError:
    number = error.errno or 0
    return _BrokenError(PairFault.NO_ROUTE, os.strerror(number) if number > 0 else str(error))
