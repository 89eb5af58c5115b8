"""Addresses for programs under test."""

import os


def own_address() -> str:
    """A loopback address of this process's own, so that a port that is always the same is free on it."""
    pid = os.getpid()
    return f"127.{pid >> 16 & 255}.{pid >> 8 & 255}.{pid & 255 or 1}"
