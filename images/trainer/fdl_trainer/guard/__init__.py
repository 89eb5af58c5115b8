"""Whether the ranks' copies of the model stay close enough, and what to do when they do not.

Ranks train apart for a window, so the anchor (and with it the speed) is bounded by how far their copies drift from the
average: D, the largest ``|W_r - W| / |W|`` over ranks. Pure rules, one module each:

* :mod:`~fdl_trainer.guard.level`: D keeps rising above a threshold: the anchor stops growing.
* :mod:`~fdl_trainer.guard.growth`: D grows too fast a step: the anchor stops growing, or is halved.
* :mod:`~fdl_trainer.guard.persistent`: D stays above ten thresholds: the anchor shrinks, then a rollback is called for.
* :mod:`~fdl_trainer.guard.meta`: the learning rate falls off a cliff, or guards never rest: the anchor is cut.
* :mod:`~fdl_trainer.guard.watch`: all of them together; :mod:`~fdl_trainer.guard.journal`: what they did, for status.

A spec chooses level, growth or none (``elche.guard``) and the meta controller (``elche.metaController``). In sync modes
the anchor never moves, so nothing is judged there.
"""

from fdl_trainer.guard.journal import Action, Journal, Record
from fdl_trainer.guard.verdict import STABLE, Judgement, Phase, Signal, Verdict
from fdl_trainer.guard.watch import GuardKnobs, GuardState, is_apart, judge, quarantined, rollback, together

__all__ = [
    "STABLE",
    "Action",
    "GuardKnobs",
    "GuardState",
    "Journal",
    "Judgement",
    "Phase",
    "Record",
    "Signal",
    "Verdict",
    "is_apart",
    "judge",
    "quarantined",
    "rollback",
    "together",
]
