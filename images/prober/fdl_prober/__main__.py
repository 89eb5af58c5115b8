"""``python -m fdl_prober``: the process of the DaemonSet."""

import asyncio
import logging
import os
import signal
import sys

from kubernetes.aio import client, config

from fdl_prober.loop import Prober
from fdl_prober.server import Server
from fdl_prober.settings import Settings, SettingsError, from_env


async def serve(settings: Settings) -> None:
    """Run the loop until SIGTERM or SIGINT."""
    configuration = client.Configuration()
    config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with client.ApiClient(configuration) as api:
        await Prober(settings, Server(api, settings.node, settings.namespace)).run(stop)


def main() -> int:
    """Entry point; 2 when the environment is wrong."""
    logging.basicConfig(
        level=os.environ.get("FDL_LOG_LEVEL", "INFO"), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        settings = from_env(os.environ)
    except SettingsError as error:
        logging.getLogger("fdl_prober").error("%s", error)
        return 2
    asyncio.run(serve(settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
