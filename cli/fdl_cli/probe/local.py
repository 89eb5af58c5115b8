"""``fdl probe --local``: the prober's own survey of this machine, run as a program of its own.

No package imports another, and the prober may hang in a driver; both are reasons for a process.
"""

import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from fdl_api.report import Report

LIMIT_SECONDS: Final = 120.0
MODULE: Final = "fdl_prober"


class LocalError(Exception):
    """This machine could not be surveyed; the text says why and what to do."""


def survey(arguments: Sequence[str] = (), python: str = sys.executable) -> Report:
    """The prober's report about this machine.

    Args:
        arguments: further arguments of the prober.
        python: interpreter with the prober in it.

    Raises:
        LocalError: the prober is not installed, ended without a report, or did not end in time.
    """
    command = [python, "-m", MODULE, "--local", "--json", *arguments]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise LocalError(
            f"the prober did not end within {LIMIT_SECONDS:.0f} s; a driver may hang: see dmesg, and try nvidia-smi"
        ) from error
    except OSError as error:
        raise LocalError(f"{python} cannot be started: {error.strerror or error}") from error
    try:
        return Report.model_validate_json(done.stdout)
    except ValueError as error:
        raise LocalError(_why(done.returncode, done.stderr)) from error


def _why(code: int, said: str) -> str:
    last = said.strip().splitlines()[-1] if said.strip() else "it said nothing"
    if "No module named" in last:
        return f"the prober is not installed here ({last}); install it with: pip install 'fdl[prober]'"
    return f"the prober ended with {code} and without a report: {last}"
