"""Worker processes that read samples.

They are forked before the rank touches its device or dials anybody, so that they hold neither a context nor a
connection. They end by the rank alone: a terminal's or the kubelet's signals are for the rank, which still needs its
data to finish the batch, and the kernel kills them when the rank is gone.
"""

import contextlib
import ctypes
import multiprocessing
import os
import signal
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import torch

from fdl_trainer import randomness
from fdl_trainer.loader.fetch import DataError, Fetched, Fetcher

_DEATH_SIGNAL_OPTION = 1
"""PR_SET_PDEATHSIG of prctl(2)."""
_IGNORED = (signal.SIGTERM, signal.SIGINT)
_DEVICE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


class Workers:
    """A fixed number of processes, each of which makes one batch at a time.

    Args:
        fetcher: makes the batches; forked with its dataset, never pickled.
        count: number of processes, >= 1.
        seed: of the random numbers that the dataset draws.
    """

    def __init__(self, fetcher: Fetcher, count: int, seed: int) -> None:
        self._rank = fetcher.rank
        self._count = count
        self._seed = seed
        self._pool = ProcessPoolExecutor(
            count, multiprocessing.get_context("fork"), _Worker.start, (fetcher, os.getpid())
        )

    def start(self) -> None:
        """Fork the processes now, from the calling thread: it must be the rank's main thread, which lives longest."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)  # until a worker has said that it ignores them
        try:
            self._pool.submit(os.getpid).result()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def pids(self) -> list[int]:
        """Process ids of those alive."""
        return sorted(process.pid for process in (self._pool._processes or {}).values() if process.pid)

    def submit(self, indices: list[int], position: int) -> "Future[Fetched]":
        """Have a batch made.

        Args:
            indices: its samples.
            position: its place in the run's stream: what the dataset draws at random depends on it and on the seed, and
                not on the worker.

        Raises:
            DataError: the processes are gone.
        """
        try:
            return self._pool.submit(_Worker.fetch, indices, self._seed, position)
        except BrokenProcessPool as error:
            raise self.lost() from error

    def lost(self) -> DataError:
        """What to say when a process ended by itself."""
        return DataError(
            f"Rank {self._rank}: one of its {self._count} loader worker processes ended unexpectedly: it was killed, "
            "most likely for memory, or the dataset's code crashed. Give session.setup fewer workers, or the member "
            "more memory."
        )

    def close(self) -> None:
        """End the processes, whatever they read, and collect them: nobody waits for their batches any more."""
        for process in list((self._pool._processes or {}).values()):
            process.kill()
        self._pool.shutdown(wait=True, cancel_futures=True)


class _Worker:
    """The state of a worker's process."""

    fetcher: Fetcher | None = None

    @classmethod
    def start(cls, fetcher: Fetcher, parent: int) -> None:
        """First thing that a worker does."""
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _IGNORED)
        with contextlib.suppress(OSError, AttributeError):  # not on Linux: the pipe's end is what is left to see
            ctypes.CDLL(None).prctl(_DEATH_SIGNAL_OPTION, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # the rank died before the kernel was asked to tell
        for name in _DEVICE_VARIABLES:
            os.environ[name] = ""
        torch.set_num_threads(1)
        cls.fetcher = fetcher

    @classmethod
    def fetch(cls, indices: list[int], seed: int, position: int) -> Fetched:
        """Make a batch."""
        assert cls.fetcher is not None
        randomness.seed_host(f"fdl-worker-1:{seed}:{position}")
        return cls.fetcher(indices)
