"""``python -m fdl_prober``: the process of the DaemonSet; with ``--local``, one survey of a machine out of clusters."""

import asyncio
import logging
import os
import signal
import sys

from fdl_prober import local
from fdl_prober.settings import Settings, SettingsError, from_env, local_from_env


async def serve(settings: Settings) -> None:
    """Run the loop until SIGTERM or SIGINT."""
    # A machine outside a cluster needs none of the client's packages.
    from kubernetes.aio import client, config  # noqa: PLC0415

    from fdl_prober.loop import Prober  # noqa: PLC0415
    from fdl_prober.server import Server  # noqa: PLC0415

    configuration = client.Configuration()
    config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with client.ApiClient(configuration) as api:
        await Prober(settings, Server(api, settings.node, settings.namespace)).run(stop)


def main() -> int:
    """Entry point; 2 when the environment or an argument is wrong."""
    logging.basicConfig(
        level=os.environ.get("FDL_LOG_LEVEL", "INFO"), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        if sys.argv[1:]:
            return local.main(sys.argv[1:], local_from_env(os.environ))
        settings = from_env(os.environ)
    except SettingsError as error:
        logging.getLogger("fdl_prober").error("%s", error)
        return 2
    asyncio.run(serve(settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
