"""Looks that may hang or crash: each module is a small program, run by :func:`fdl_prober.child.run_module`.

They import little, since each look starts one, and write one JSON object to standard output. What both they and who
starts them have to know stands here.
"""

from typing import Final

NVML_LIBRARY: Final = "libnvidia-ml.so.1"
NVML_PROCESSES: Final = "processes"
"""Second argument of the look at NVML that asks for the processes which hold memory, too."""
