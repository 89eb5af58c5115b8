"""Groups that do not come to stand: who is told what, and how long the next try waits. Pure rules.

One failure is nothing: a rank was late, or died and nobody knew it yet. Three of the same change of membership in a row
are a network that does not let the ranks reach each other, and no further try will mend it: then the run's state says
which rank failed, in its words, and what to do, and the tries become rarer.
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass

from fdl_api.run import Mode

TELL_AFTER = 3
"""Failures in a row after which people are told."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 60.0
"""Time to the next try from then on; it doubles with each failure."""
SLOW_SECONDS = 120.0
"""A group that does not stand after so long, though nobody says that it failed, is worth a word."""
QUOTED = 600
"""Characters of a rank's report that are quoted."""


@dataclass
class Failures:
    """Tries of one change of membership that failed in a row.

    Attributes:
        change: whose group it is; another one counts anew.
        count: how many tries failed.
        epoch: the newest of them.
        rank: UID of the rank that reported it first.
        text: what it said.
        ranks: how many reported it.
        of_group: the group could not be made. Otherwise it stood, and its operations fail.
        again_at: time of the next try.
    """

    change: Hashable = None
    count: int = 0
    epoch: int = 0
    rank: str = ""
    text: str = ""
    ranks: int = 0
    of_group: bool = True
    again_at: float = -math.inf

    def report(self, change: Hashable, epoch: int, rank: str, text: str, now: float, *, of_group: bool = True) -> None:
        """A rank says that an epoch's group failed; several may say it of one epoch."""
        if change != self.change:
            self.clear()
            self.change = change
        if epoch != self.epoch:
            self.count += 1
            self.epoch, self.rank, self.text, self.ranks, self.of_group = epoch, rank, text, 0, of_group
            self.again_at = now + pause(self.count)
        self.ranks += 1

    def clear(self) -> None:
        """A group works."""
        self.change, self.count, self.epoch, self.again_at = None, 0, 0, -math.inf
        self.rank, self.text, self.ranks, self.of_group = "", "", 0, True

    @property
    def telling(self) -> bool:
        """Whether people are to be told."""
        return self.count >= TELL_AFTER


def pause(count: int) -> float:
    """Seconds that the next try waits after so many failures in a row."""
    if count < TELL_AFTER:
        return 0.0
    return min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(count - TELL_AFTER, 16))


def exceeds(failures: Failures, budget: int) -> bool:
    """Whether tries that failed in a row are more than a run bears: its budget of failures by infrastructure, and never
    so few that nobody was told yet.

    Args:
        failures: of the group of all ranks, none of whose windows was committed meanwhile.
        budget: ``failurePolicy.budgets.infrastructure`` of the run.
    """
    return failures.count > max(budget, TELL_AFTER)


def given_up(problem: str, budget: int) -> str:
    """A sentence about the end of a run whose group never stands.

    Args:
        problem: what :func:`failed` says.
        budget: see :func:`exceeds`.
    """
    limit = f"spec.failurePolicy.budgets.infrastructure of {budget}"
    at_least = f" (of {TELL_AFTER} at least)" if budget < TELL_AFTER else ""
    return f"The run is given up, since no window is committed and the tries exceed {limit}{at_least}. {problem}"


def remedy(mode: Mode) -> str:
    """What a person can do about ranks that do not reach each other."""
    reach = "check that the members reach each other on all ports (firewall, NetworkPolicy, security group)"
    library = "NCCL" if mode.is_nccl else "GLOO"
    interface = (
        f"where nodes have several networks, name the interface that connects them as {library}_SOCKET_IFNAME in "
        "spec.trainer.env"
    )
    way_out = "; or set spec.mode to 'cpu-cadence' or 'cpu-sync' in a new run" if mode.is_nccl else ""
    return f"{reach}; {interface}{way_out}."


def failed(failures: Failures, who: str, joins: str, mode: Mode, *, pairs: str = "", remedies: str = "") -> str:
    """A sentence about failures that people are told of.

    Args:
        failures: what failed.
        who: the rank that reported it, in words.
        joins: names of the members that come or go with the change; empty when it is the whole cohort's.
        mode: of the run.
        pairs: which ranks do not reach each other, as sentences, if that is known.
        remedies: what to do about these pairs.
    """
    others = f" ({failures.ranks - 1} more ranks reported it)" if failures.ranks > 1 else ""
    what = f"The change of membership for {joins}" if joins else "The group of all ranks"
    goes_on = " The run goes on as it is, and tries again once a minute at most." if joins else ""
    text = " ".join(failures.text.split())[:QUOTED].rstrip(".")
    says = f" {who} says: {text}." if text else ""
    return (
        f"{what} failed {failures.count} times in a row, last as epoch {failures.epoch}{others}."
        f"{_before(pairs)}{says}{goes_on}{_before(remedies)} To mend it, {remedy(mode)}"
    )


def stuck(epoch: int, pairs: str, remedies: str) -> str:
    """A sentence about a group that does not come to stand, where ranks are known that do not reach each other."""
    return f"The group of epoch {epoch} does not come to stand. {pairs} {remedies}"


def _before(text: str) -> str:
    return f" {text}" if text else ""


def slow(epoch: int, minutes: int, missing: list[str], mode: Mode) -> str:
    """A sentence about a group that does not come to stand, though nobody says that it failed.

    Args:
        epoch: number of the membership epoch.
        minutes: for how long, in whole minutes.
        missing: the ranks that have not formed it, in words; at least one.
        mode: of the run.
    """
    named = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
    return (
        f"The group of epoch {epoch} has not come to stand for more than {minutes} min: nothing was heard of {named}. "
        f"If it stays so, {remedy(mode)}"
    )
