"""Times as the API server writes them and as the rules count them (seconds since 1970)."""

import datetime
from typing import Final

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def parse(text: str | None) -> float | None:
    """Seconds since 1970 of an RFC 3339 time; ``None`` for ``None``, an empty or an unreadable text."""
    if not text:
        return None
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return (moment - _EPOCH).total_seconds()


def render(seconds: float) -> str:
    """RFC 3339 time in UTC, whole seconds."""
    return (_EPOCH + datetime.timedelta(seconds=int(seconds))).strftime("%Y-%m-%dT%H:%M:%SZ")
