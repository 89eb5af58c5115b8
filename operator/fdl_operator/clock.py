"""Times as the API server writes them and as the rules count them (seconds since 1970)."""

import datetime

from fdl_api.clock import parse, render

__all__ = ["parse", "render", "render_micro"]


def render_micro(seconds: float) -> str:
    """RFC 3339 time in UTC with microseconds, as Leases and Events want it."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
