"""Where a script touched CUDA first.

A context that a script makes while it is being read belongs to no rank: it is made before the run is known, it costs
memory on the device, and a process that forks afterwards is broken. So :func:`fdl_trainer.run` refuses it, and to name
the line, a rank's process watches from before the script begins.
"""

import os
import sys
import sysconfig
from types import FrameType

_PACKAGES = (sysconfig.get_paths()["purelib"], sysconfig.get_paths()["stdlib"])


class _Touch:
    """This process's first touch."""

    where: str | None = None


def watch() -> None:
    """From now on, note who initialises CUDA. Loads torch, and nothing of CUDA."""
    import torch  # noqa: PLC0415 - a script that cannot even be read must not cost torch's import

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        # Called by torch in the course of the initialisation, whichever of its many doors that came in by.
        torch.cuda._lazy_call(_note)  # type: ignore[no-untyped-call]


def first_touch() -> str | None:
    """``file:line`` of the script's first touch; None when there was none, or nobody watched."""
    return _Touch.where


def _note() -> None:
    if _Touch.where is None:
        _Touch.where = place_of(sys._getframe(1))


def place_of(frame: FrameType | None) -> str:
    """``file:line`` of the innermost frame that is neither Python's, nor an installed package's, nor fdl's own."""
    ours = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - a frame has strings
    fallback = "an unknown line"
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((*_PACKAGES, ours, "<")):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return fallback
