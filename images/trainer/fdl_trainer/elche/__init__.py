"""ElChe: how many batches each rank trains before the next averaging.

The slowest rank, the *anchor rank*, trains ``anchor`` batches in a window, and every other rank as many as it can in
the same time. The anchor grows while the fixed cost of a window (averaging, filling the loader) is more than
``overhead_target`` of it, as far as the guards allow. Read in this order:

1. :mod:`~fdl_trainer.elche.speed`: milliseconds a batch of each rank, from what it reported;
2. :mod:`~fdl_trainer.elche.election`: which rank is the anchor rank;
3. :mod:`~fdl_trainer.elche.growth`: the anchor, and how the guard's verdict moves it;
4. :mod:`~fdl_trainer.elche.quota`: batches of each rank, :mod:`~fdl_trainer.elche.hints`: before speeds are known,
   :mod:`~fdl_trainer.elche.prior`: by devices, :mod:`~fdl_trainer.elche.deadline`: ranks that stop by time;
5. :mod:`~fdl_trainer.elche.state`: all that is remembered; :mod:`~fdl_trainer.elche.engine`: the steps of a window.

Everything here is pure, over numbers that all ranks share, with arithmetic that gives the same bits everywhere
(:mod:`fdl_trainer.exact`), so that all ranks plan alike without asking. Source of the formulas: floDl's ElChe at its
newest values; each module says what differs and why. ``fdl simulate`` plays it in virtual time.
"""

from fdl_trainer.elche.deadline import should_stop
from fdl_trainer.elche.engine import (
    admit,
    assign,
    believe,
    create,
    deadline_ms,
    keep,
    observe,
    quotas,
    resume_notes,
)
from fdl_trainer.elche.growth import apply_verdict
from fdl_trainer.elche.hints import NOWHERE, Seated, Seating
from fdl_trainer.elche.knobs import ElcheKnobs, Policy
from fdl_trainer.elche.prior import Hardware
from fdl_trainer.elche.quota import first_quota, first_quotas
from fdl_trainer.elche.speed import RankReport, RankSpeed
from fdl_trainer.elche.state import ElcheState, from_json, to_json
from fdl_trainer.guard import Phase

__all__ = [
    "NOWHERE",
    "ElcheKnobs",
    "ElcheState",
    "Hardware",
    "Phase",
    "Policy",
    "RankReport",
    "RankSpeed",
    "Seated",
    "Seating",
    "admit",
    "apply_verdict",
    "assign",
    "believe",
    "create",
    "deadline_ms",
    "first_quota",
    "first_quotas",
    "from_json",
    "keep",
    "observe",
    "quotas",
    "resume_notes",
    "should_stop",
    "to_json",
]
