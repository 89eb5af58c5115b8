"""Memory that a rank on processors has freed stays with its process.

glibc gives the top of the heap back to the kernel as soon as more than 128 KiB of it are free, and large blocks
at once. A training frees each batch's activations and takes the same again with the next one, and the kernel has to
hand out every page anew, zeroed: measured, 1,000 to 2,200 page faults a batch of a small convolutional net, a fifth to
a third of its processor time. Devices need none of this: torch keeps their memory itself.
"""

import contextlib
import ctypes
import os
from collections.abc import Mapping

import torch

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's ``mallopt``: M_TRIM_THRESHOLD and M_MMAP_THRESHOLD."""
KEEP_BYTES = 1 << 30
"""Free memory at the top of the heap that is kept."""
LARGEST_BYTES = 32 << 20
"""Blocks up to this size come from the heap; the largest that glibc allows on 64 bits."""
USERS_OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
"""Variables by which a user has decided for himself."""


def keep_freed(device: torch.device, environment: Mapping[str, str] = os.environ) -> bool:
    """Have glibc keep what is freed, up to a gibibyte; returns whether it does.

    Nothing happens on devices, with another C library, or where one of :data:`USERS_OWN` is set. An allocator that
    was loaded before glibc's (jemalloc, tcmalloc) has its own ways and is not touched by it.
    """
    if device.type != "cpu" or any(environment.get(name) for name in USERS_OWN):
        return False
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        return all([mallopt(MMAP_THRESHOLD, LARGEST_BYTES), mallopt(TRIM_THRESHOLD, KEEP_BYTES)])
    return False
