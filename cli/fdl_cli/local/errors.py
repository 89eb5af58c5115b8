"""The one error of ``fdl local``: a sentence that says what went wrong, where, and what to do."""


class LocalError(Exception):
    """A fault that a person can act on; commands print it without a traceback."""
