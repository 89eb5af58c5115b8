"""One NCCL (or RCCL) version for a cohort: members of one communicator need the same major.minor. Pure."""

from collections import Counter
from collections.abc import Collection, Mapping


def major_minor(version: str) -> str:
    """``2.27.3`` is ``2.27``: releases of one major.minor work together."""
    return ".".join(version.split(".")[:2])


def order(version: str) -> tuple[int, ...]:
    """For comparing versions: ``2.9`` is older than ``2.10``."""
    return tuple(int(part) if part.isdecimal() else 0 for part in version.split("."))


def common_version(offers: Mapping[str, Collection[str]], kept: str = "") -> str:
    """The version that a cohort should run: the one that most nodes can load, the newest of equals.

    Args:
        offers: for each node the versions that it can load.
        kept: version of the members that the cohort has already: a second one could not talk to them.

    Returns:
        major.minor; empty when no node's version is known.
    """
    if kept:
        return kept
    counts = Counter(version for versions in offers.values() for version in set(versions))
    return max(counts, key=lambda version: (counts[version], order(version)), default="")
