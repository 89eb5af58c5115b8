"""A rank as a fork of the driver, which has torch loaded: importing it anew would take seconds a slice."""

import importlib
import os
import signal
import site
import sys
import traceback
from pathlib import Path

import torch

from bench.training.job import Job
from bench.training.peers import PROGRAMS
from bench.training.quotas import settle
from fdl_trainer.heap import keep_freed

ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_NVLS_ENABLE": "0", "OMP_NUM_THREADS": "1", "RUST_LOG": "error"}


def preload() -> None:
    """Import in the driver what its forks need: the first optimizer alone imports another 900 modules."""
    torch.set_num_threads(1)
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    for module in PROGRAMS.values():
        importlib.import_module(module)


def fork(job: Job, log: Path) -> int:
    """Start a rank in a session of its own; its process id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _become(job, log)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return pid


def _become(job: Job, log: Path) -> None:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(target, 1)
    os.dup2(target, 2)
    sys.stdout = sys.stderr = os.fdopen(target, "w", buffering=1)  # whoever forked may have redirected his own
    os.environ.update(ENVIRONMENT)
    settle(os.getpid(), job.core, Path(job.group) if job.group else None)
    torch.set_num_threads(1)
    keep_freed(torch.device(job.device))  # as fdl's ranks do: else how peers fare depends on what the driver has freed
    if job.packages:
        site.addsitedir(job.packages)
    importlib.import_module(PROGRAMS[job.kind]).train(job)
