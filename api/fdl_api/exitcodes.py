"""Exit codes of a member's pod and of ``fdl join``.

A script's own exit code never leaves the pod bare (Python itself uses 1 and 2): the agent maps it to one
of these and writes :class:`fdl_api.termination.Termination` beside it.
"""

from enum import IntEnum


class PodExit(IntEnum):
    """Exit code of a member's agent. The figures follow sysexits where one fits."""

    DONE = 0
    """The run is complete."""
    USER_CODE = 64
    """The user's script is missing, does not parse, raised, or never trained: a person must act."""
    DIVERGED = 65
    """The guard gave the training up."""
    DATA = 66
    """The data is missing, empty or not the same on all members."""
    INTERNAL = 70
    """A fault of fdl itself; retried with back-off, within the infrastructure budget."""
    LEFT = 75
    """Left on request (preemption, drain, suspend): retried without counting."""
    FENCED = 76
    """The cohort went on without this incarnation; a successor has its seat."""
    BELOW_MINIMUM = 77
    """The cohort fell below its minimum and a checkpoint was written."""
    COORDINATOR_LOST = 78
    """The coordinator could not be reached within the limit."""
    REFUSED = 79
    """The coordinator refused this member for good; the termination message names the reason."""
    KILLED = 137
    TERMINATED = 143


class JoinExit(IntEnum):
    """Exit code of ``fdl join`` on a walk-in box."""

    DONE = 0
    TRANSIENT = 1
    """Somebody else can mend it without touching this box: dial again."""
    PERMANENT = 2
    """This box needs a person."""
