"""A process that waits for signals, and is stopped and continued meanwhile."""

import os
import signal
import subprocess
import sys
import time

WAITS = """
import os, signal, sys
from fdl_trainer import signals
numbers = (signal.SIGTERM, signal.SIGCHLD)
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
print("ready", flush=True)
while True:
    came = signals.wait(numbers, 0.02)
    if came is not None:
        print(came.name, flush=True)
        if came is signal.SIGTERM:
            sys.exit(3)
"""


def test_a_process_that_was_stopped_is_told_of_no_signal_that_did_not_come() -> None:
    process = subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for _ in range(5):
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(0.05)  # its wait is over before it goes on
            os.kill(process.pid, signal.SIGCONT)
            time.sleep(0.05)
        assert process.poll() is None, "it waits on"
        process.terminate()
        assert process.stdout.read() == "SIGTERM\n"
        assert process.wait(10) == 3
    finally:
        process.kill()
        process.wait()
