"""Do the devices of this member reach each other? Asked before its ranks start, in processes that can be given up.

NCCL reads its switches once a process and can hang in the first operation of a communicator, so each way is tried by
processes of its own, one a device: the agent runs :func:`preflight`, which runs ``python -m
fdl_trainer.preflight RANK SIZE FILE`` for each device. A member with one device needs none of it.
"""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from fdl_api.wire import Device
from fdl_trainer.devices import visible
from fdl_trainer.transport import SWITCHES, Choice, Level, Trial, decide, levels, log_settings, ways

log = logging.getLogger(__name__)

LIMIT_SECONDS = 90.0
"""Of one way. Loading torch and making a communicator takes 5 to 20 s; a way that does not work often just hangs."""
ELEMENTS = 1 << 20
"""Elements of the test's sum: enough that NCCL uses the way for data and not only for small messages."""
_PERIOD_SECONDS = 0.05


def preflight(devices: Sequence[Device], environment: Mapping[str, str], node: str) -> Choice:
    """Find the best way between a member's devices.

    Args:
        devices: the member's, at least two.
        environment: what its ranks will be given.
        node: name of the node, for the sentence.
    """
    trials: list[Trial] = []
    for level in levels(environment):
        trials.append(_try(level, devices, environment))
        if not trials[-1].problem:
            break
    return decide(trials, len(devices), node)


def _try(level: Level, devices: Sequence[Device], environment: Mapping[str, str]) -> Trial:
    with tempfile.TemporaryDirectory(prefix="fdl-preflight-") as folder:
        processes = []
        try:
            for rank, device in enumerate(devices):
                command = [sys.executable, "-m", "fdl_trainer.preflight", str(rank), str(len(devices)), folder]
                its_own = {**environment, **SWITCHES[level], **visible(environment, device)}
                output = Path(folder, f"{rank}.out").open("wb")  # noqa: SIM115 - closed below, beside the process
                processes.append(
                    (subprocess.Popen(command, env=its_own, stdout=output, stderr=subprocess.STDOUT), output)
                )
            problem = _wait([process for process, _ in processes])
        finally:
            for process, output in processes:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                process.wait()
                output.close()
        return _judge(
            level, problem, [Path(folder, f"{rank}.out").read_text("utf-8", "replace") for rank in range(len(devices))]
        )


def _wait(processes: Sequence["subprocess.Popen[bytes]"]) -> str:
    """Wait until all have ended; returns why that did not go well, or nothing."""
    limit = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < limit:
        codes = [process.poll() for process in processes]
        if any(code not in (None, 0) for code in codes):
            return "NCCL reported an error"
        if all(code == 0 for code in codes):
            return ""
        if signal.SIGTERM in signal.sigpending():
            return "the member was asked to go meanwhile"
        time.sleep(_PERIOD_SECONDS)
    return f"it hung for {LIMIT_SECONDS:.0f} s"


def _judge(level: Level, problem: str, outputs: Sequence[str]) -> Trial:
    """One way's trial from what its processes printed: one line of JSON each at the end."""
    said, used = "", []
    for output in outputs:
        lines = output.strip().splitlines()
        with contextlib.suppress(ValueError, IndexError):
            answer = json.loads(lines[-1])
            said = said or str(answer["error"])
            used += [Level(name) for name in answer["ways"]]
    if problem:
        return Trial(level, said or problem)
    return Trial(level, used=max(used, key=list(Level).index, default=None))


def _attempt(rank: int, size: int, folder: Path) -> str:
    """One device's part; returns what went wrong, or nothing."""
    import torch  # noqa: PLC0415 - the agent imports this module and needs no torch
    from torch._C._distributed_c10d import FileStore  # noqa: PLC0415

    from fdl_trainer.groups.nccl import new_nccl  # noqa: PLC0415
    from fdl_trainer.groups.reaper import Reaper  # noqa: PLC0415

    device = torch.device("cuda", 0)
    store = FileStore(str(folder / "store"), size)
    group = new_nccl(
        store, name="fdl-preflight", rank=rank, size=size, device=device, address="127.0.0.1", reaper=Reaper()
    )
    buffer = torch.full((ELEMENTS,), float(rank + 1), device=device)
    group.all_reduce(buffer, lambda: False)
    wanted = size * (size + 1) / 2
    wrong = int((buffer != wanted).sum().item())
    return f"the sum is wrong in {wrong} of {ELEMENTS} numbers" if wrong else ""


def main(arguments: Sequence[str]) -> int:
    """Entry point of one device's process."""
    rank, size, folder = int(arguments[0]), int(arguments[1]), Path(arguments[2])
    own_log = folder / f"{rank}.nccl"
    os.environ.update(log_settings(os.environ, str(own_log)))
    try:
        problem = _attempt(rank, size, folder)
    except RuntimeError as error:
        problem = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
    text = own_log.read_text("utf-8", "replace") if own_log.exists() else ""
    print(json.dumps({"error": problem, "ways": [level.value for level, _ in ways(text)]}), flush=True)
    # At once: at a normal exit torch would wait for peers that may be gone.
    os._exit(1 if problem else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
