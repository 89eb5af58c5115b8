"""A look that has parts: what one of them meets costs none of the others."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

from fdl_prober.text import plain

Found = TypeVar("Found")
MAX_WORDS: Final = 300


def words(error: BaseException) -> str:
    """An error for people, in one line."""
    return plain(f"{type(error).__name__}: {error}", MAX_WORDS)


class Parts:
    """Looks at one part after the other, and keeps why some of them have no answer."""

    def __init__(self) -> None:
        self.silent: dict[str, str] = {}
        """Parts without an answer, with the reason."""

    def look(self, name: str, empty: Found, look: Callable[..., Found], *arguments: Any) -> Found:
        """A part's answer, or an empty one and its name among the silent."""
        try:
            return look(*arguments)
        except Exception as error:  # whatever a file of the kernel's, or one in its place, brings about
            self.silent[name] = words(error)
            return empty
