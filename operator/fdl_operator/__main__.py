"""``python -m fdl_operator``: settings from the environment, then :class:`fdl_operator.app.Operator`."""

import asyncio
import logging
import sys

from fdl_operator import client
from fdl_operator.app import Operator, stop_on_signals
from fdl_operator.settings import Settings, SettingsError, from_env


async def _serve(settings: Settings) -> int:
    connection = await client.connect(qps=settings.qps, burst=settings.burst)
    try:
        return await Operator(connection, settings).run(stop_on_signals())
    finally:
        await connection.close()


def main() -> int:
    """Run the operator.

    Returns:
        0 after a signal; 1 when the Lease was lost (the kubelet starts it anew); 64 for settings that cannot be used.
    """
    try:
        settings = from_env()
    except SettingsError as error:
        print(f"The operator cannot start: {error}.", file=sys.stderr)
        return 64
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if logging.getLogger().level > logging.DEBUG:
        logging.getLogger("kopf").setLevel(logging.WARNING)  # it logs each event that it hands over
    return asyncio.run(_serve(settings))


if __name__ == "__main__":
    sys.exit(main())
