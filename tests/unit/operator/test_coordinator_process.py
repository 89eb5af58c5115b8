"""The operator's stream against the coordinator as it runs in its pod: same files, same environment, own process."""

import asyncio
import contextlib
import datetime
import os
import socket
import sys
from pathlib import Path

from fdl_api.names import CLOSED_PORT
from fdl_api.runconfig import MemberEnv
from fdl_api.wire import Hint, Outcome
from fdl_operator.build.objects import config_map
from fdl_operator.build.pki import new_keys
from fdl_operator.build.runconfig import run_config
from fdl_operator.model import StreamView
from fdl_operator.policies import Door, enforced
from fdl_operator.streams import Streams, Target
from tests.addresses import own_address

from .builders import UID, World


async def test_the_coordinator_answers_the_operator_and_obeys_a_suspension(tmp_path: Path) -> None:
    run = World().run
    assert run.spec is not None
    here = own_address()
    with socket.socket() as free:
        free.bind((here, 0))
        port = free.getsockname()[1]
    keys = new_keys("run", "ns", datetime.datetime.now(datetime.UTC))
    config = run_config(run, run.spec, attempt=1, must_resume=False).model_copy(update={"coordinator_port": port})
    files = {
        MemberEnv.RUN_FILE: config_map(run, config, "h")["data"]["run.json"],
        MemberEnv.TOKEN_FILE: keys.token,
        MemberEnv.CA_FILE: keys.ca,
        MemberEnv.CERT_FILE: keys.certificate,
        MemberEnv.KEY_FILE: keys.key,
    }
    env = {**os.environ, MemberEnv.GENERATION: "3", "FDL_LISTEN": here, "POD_IP": here}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        env[name] = str(tmp_path / name)
    views: dict[str, StreamView] = {}
    streams = Streams(lambda uid: views.get(uid, StreamView()), lambda uid, view, _: views.update({uid: view}))
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "fdl_coordinator", env=env)
    try:
        streams.ensure(Target(UID, here, config.coordinator_host, keys.token, keys.ca, 3, port))
        async with asyncio.timeout(30):
            while (state := views[UID].state) is None:  # noqa: ASYNC110 - another process answers
                await asyncio.sleep(0.02)
            assert (state.generation, state.run_uid, state.attempt, state.outcome) == (3, UID, 1, Outcome.WAITING)
            # Nothing enforces a policy on the loopback, and that is what is found.
            assert views[UID].closed_port == CLOSED_PORT
            assert await enforced(Door(UID, "n1", here, views[UID].closed_port, port)) is False
            streams.hint(UID, Hint(wanted_members=2, suspend=True))
            while (state := views[UID].state) is None or state.outcome is not Outcome.SUSPENDED:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    finally:
        await streams.stop()
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        assert await asyncio.wait_for(process.wait(), 20) == 0
