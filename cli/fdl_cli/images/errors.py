"""The one error of ``fdl images`` that a person sees."""


class ImageError(Exception):
    """A build or look-up that cannot go on. The text says what went wrong, where, and what to do."""
