"""A look that may hang or crash, in a process of its own."""

import asyncio
import contextlib
import sys
from dataclasses import dataclass

_REAP_SECONDS = 2.0


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


async def run_module(module: str, *arguments: str, limit_seconds: float) -> Ended:
    """Run ``python -m module arguments`` and kill it at its limit.

    A process that hangs inside a driver or a dead mount survives even SIGKILL until the kernel lets it go; it is
    waited for only briefly then.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), limit_seconds)
    except TimeoutError:
        return Ended(code=None)
    finally:
        if process.returncode is None:
            process.kill()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _REAP_SECONDS)
    lines = errors.decode(errors="replace").strip().splitlines()
    return Ended(code=process.returncode, output=output, error=lines[-1] if lines else "")
