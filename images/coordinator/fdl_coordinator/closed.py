"""The port that the run's NetworkPolicy closes to the operator: it listens, and hangs up on whoever gets through.

While the operator talks with this process on the other port, only the policy can keep it from this one.
"""

import asyncio
import logging

from fdl_api import names


async def listen(host: str, port: int = names.CLOSED_PORT) -> int:
    """Open the port for the life of the running loop.

    Args:
        host: address to listen on.
        port: the port; 0 for any free one.

    Returns:
        The port; 0 when it cannot be had, which only leaves the policy untried.
    """
    try:
        server = await asyncio.start_server(_hang_up, host, port)
    except OSError as error:
        logging.warning("port %d cannot be opened, so that nobody tries the NetworkPolicy: %s", port, error)
        return 0
    return int(server.sockets[0].getsockname()[1])


async def _hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()
