"""``python -m fdl_coordinator``: the coordinator of one run, told everything by files and environment."""

import asyncio
import logging
import os
import signal
import ssl
import sys
from pathlib import Path

from fdl_api import names
from fdl_api.runconfig import MemberEnv, RunConfig
from fdl_coordinator import closed
from fdl_coordinator.engine import Engine
from fdl_coordinator.server import Coordinator


def _file(variable: str, default: str) -> Path:
    return Path(os.environ.get(variable, default))


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(_file(MemberEnv.CERT_FILE, names.CERT_FILE), _file(MemberEnv.KEY_FILE, names.KEY_FILE))
    return context


async def _serve(config: RunConfig, token: str, generation: int, host: str) -> None:
    coordinator = Coordinator(Engine(config, generation), token)
    if os.environ.get("POD_IP"):
        coordinator.closed_port = await closed.listen(host)
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(coordinator.run(host, config.coordinator_port, _context(), asyncio.Event()))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        logging.info("stopped by a signal; the ranks train on and wait for the next coordinator")


def main() -> int:
    """Serve the run until told to end.

    Returns:
        0 after a signal, 64 when the run file, the token or the certificate cannot be read.
    """
    level = os.environ.get("FDL_LOG_LEVEL", "INFO")
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s")
    if level != "DEBUG":  # each look of the kubelet and of the operator is a connection: nothing else would be seen
        logging.getLogger("websockets").setLevel(logging.WARNING)
    try:
        config = RunConfig.model_validate_json(_file(MemberEnv.RUN_FILE, names.RUN_FILE).read_bytes())
        token = _file(MemberEnv.TOKEN_FILE, names.TOKEN_FILE).read_text().strip()
        generation = int(os.environ.get(MemberEnv.GENERATION, "1"))
        logging.info("run %s/%s attempt %d generation %d", config.namespace, config.name, config.attempt, generation)
        asyncio.run(_serve(config, token, generation, os.environ.get("FDL_LISTEN", "0.0.0.0")))  # noqa: S104
    except (OSError, ValueError) as error:
        print(
            f"The coordinator cannot start: {error}. The operator writes {names.RUN_FILE} and {names.TOKEN_FILE}; "
            "check the run's ConfigMap and Secret.",
            file=sys.stderr,
        )
        return 64
    return 0


if __name__ == "__main__":
    sys.exit(main())
