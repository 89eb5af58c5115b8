"""A look that may hang or crash, in a process of its own."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass

_REAP_SECONDS = 2.0
_NOT_STARTED = 126
"""The shell's code for a program that could not be started."""
_BLOCK_BYTES = 1 << 16
MAX_OUTPUT_BYTES = 8 << 20
_MAX_ERROR_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Ended:
    """How the process ended.

    Attributes:
        code: exit code, negative for a signal; ``None`` when it did not end within its time.
        output: what it wrote to standard output.
        error: the last line that it wrote to standard error.
    """

    code: int | None
    output: bytes = b""
    error: str = ""


class _EndlessError(Exception):
    """A process writes more than anybody reads."""


async def _blocks(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """A stream block by block.

    Raises:
        _EndlessError: it is more than :data:`MAX_OUTPUT_BYTES`.
    """
    left = MAX_OUTPUT_BYTES
    while block := await stream.read(_BLOCK_BYTES):
        left -= len(block)
        if left < 0:
            raise _EndlessError
        yield block


async def _all(stream: asyncio.StreamReader) -> bytes:
    """Everything in a stream; raises as :func:`_blocks` does."""
    return b"".join([block async for block in _blocks(stream)])


async def _end(stream: asyncio.StreamReader) -> bytes:
    """The end of a stream, which names an error; raises as :func:`_blocks` does."""
    kept = b""
    async for block in _blocks(stream):
        kept = (kept + block)[-_MAX_ERROR_BYTES:]
    return kept


async def run_module(module: str, *arguments: str, limit_seconds: float) -> Ended:
    """Run ``python -m module arguments`` and kill it at its limit of time, or when it writes without end.

    A process that cannot be started, since the system has no room for one, says nothing either. One that hangs inside a
    driver or a dead mount survives even SIGKILL until the kernel lets it go; it is waited for only briefly then.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except (OSError, RuntimeError) as error:
        return Ended(code=_NOT_STARTED, error=f"no process could be started: {error}")
    assert process.stdout is not None
    assert process.stderr is not None
    output, errors = (asyncio.create_task(read) for read in (_all(process.stdout), _end(process.stderr)))
    try:
        await asyncio.wait_for(asyncio.gather(output, errors, process.wait()), limit_seconds)
    except _EndlessError:
        return Ended(code=-signal.SIGKILL, error=f"it wrote more than {MAX_OUTPUT_BYTES >> 20} MiB")
    except TimeoutError:
        return Ended(code=None)
    finally:
        for reading in (output, errors):  # whoever else has the pipe may keep it open
            reading.cancel()
        if process.returncode is None:
            process.kill()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _REAP_SECONDS)
        # Pipes that somebody else keeps open, or of which nobody reads the rest, stay ours otherwise until they are
        # collected, one look after the other. asyncio has no public way to close them.
        process._transport.close()  # type: ignore[attr-defined]
    lines = errors.result().decode(errors="replace").strip().splitlines()
    return Ended(code=process.returncode, output=output.result(), error=lines[-1] if lines else "")
