"""A run of real processes on loopback, for the unit tests and for the benchmarks."""

from tools.loopback.certificates import HOST, make_certificates
from tools.loopback.processes import Forked, LoopbackError, MemberProcess, Process, Zygote, wait_for
from tools.loopback.run import LoopbackRun, free_port, run_values, started

__all__ = [
    "HOST",
    "Forked",
    "LoopbackError",
    "LoopbackRun",
    "MemberProcess",
    "Process",
    "Zygote",
    "free_port",
    "make_certificates",
    "run_values",
    "started",
    "wait_for",
]
