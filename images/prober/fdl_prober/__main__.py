"""``python -m fdl_prober``: the process of the DaemonSet; with ``--local``, one survey of a machine out of clusters."""

import asyncio
import gc
import logging
import os
import signal
import sys

from fdl_prober.access import AccessError, in_cluster
from fdl_prober.loop import Prober
from fdl_prober.nodewatch import NodeWatch
from fdl_prober.server import Server
from fdl_prober.settings import Settings, SettingsError, from_env, local_from_env


async def serve(settings: Settings) -> None:
    """Run the loop until SIGTERM or SIGINT.

    Raises:
        AccessError: this is no pod with a service account.
    """
    access = in_cluster(os.environ)
    gc.collect()  # classes that imports made and replaced: half a megabyte on every node
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    prober, loop = Prober(settings, Server(access, settings.node, settings.namespace)), asyncio.get_running_loop()
    watch = NodeWatch(access, settings.node, lambda *told: loop.call_soon_threadsafe(prober.saw, *told))
    watch.start()
    try:
        await prober.run(stop)
    finally:
        watch.stop()


def main() -> int:
    """Entry point; 2 when the environment or an argument is wrong."""
    logging.basicConfig(
        level=os.environ.get("FDL_LOG_LEVEL", "INFO"), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        if sys.argv[1:]:
            from fdl_prober import local  # noqa: PLC0415 - the DaemonSet needs neither its options nor YAML

            return local.main(sys.argv[1:], local_from_env(os.environ))
        asyncio.run(serve(from_env(os.environ)))
    except (SettingsError, AccessError) as error:
        logging.getLogger("fdl_prober").error("%s", error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
