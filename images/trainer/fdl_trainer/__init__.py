"""The trainer: what runs in a member's pod, and the library that a training script uses.

For scripts: :func:`run`, :class:`Session`, :class:`Trainer`, :class:`ShardedIterable`, :class:`SampleSchedule`
(docs/concepts/session.md). Modules, top layer first:

* :mod:`~fdl_trainer.agent` (PID 1 of a member), :mod:`~fdl_trainer.rank` (runs the script), :mod:`~fdl_trainer.launch`;
* :mod:`~fdl_trainer.session`, :mod:`~fdl_trainer.assembly`, :mod:`~fdl_trainer.loop`: one rank's training;
* :mod:`~fdl_trainer.replica`, :mod:`~fdl_trainer.exchange`, :mod:`~fdl_trainer.averaging`: the state all ranks share;
* :mod:`~fdl_trainer.cohort`, :mod:`~fdl_trainer.groups`, :mod:`~fdl_trainer.store`, :mod:`~fdl_trainer.control`,
  :mod:`~fdl_trainer.epochs`: membership, and the line to the coordinator;
* :mod:`~fdl_trainer.plan`, :mod:`~fdl_trainer.elche`, :mod:`~fdl_trainer.ledger`, :mod:`~fdl_trainer.tail`: pure rules;
* :mod:`~fdl_trainer.writer`, :mod:`~fdl_trainer.checkpoint`, :mod:`~fdl_trainer.loader`,
  :mod:`~fdl_trainer.audit`: files.

The agent must start without torch, so the names below are looked up on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fdl_trainer.launch import run
    from fdl_trainer.schedule import SampleSchedule
    from fdl_trainer.session import Session
    from fdl_trainer.sharded import ShardedIterable
    from fdl_trainer.trainer import Trainer

__all__ = ["SampleSchedule", "Session", "ShardedIterable", "Trainer", "run"]

_HOMES = {
    "SampleSchedule": "fdl_trainer.schedule",
    "Session": "fdl_trainer.session",
    "ShardedIterable": "fdl_trainer.sharded",
    "Trainer": "fdl_trainer.trainer",
    "run": "fdl_trainer.launch",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
