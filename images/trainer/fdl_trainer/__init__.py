"""The trainer: what runs in a member's pod, and the library that a training script uses.

For scripts: :func:`run` and :class:`Session` (docs/concepts/session.md). Modules, top layer first:

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

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fdl_trainer.launch import run
    from fdl_trainer.session import Session

__all__ = ["Session", "run"]


def __getattr__(name: str) -> Any:
    if name == "run":
        from fdl_trainer.launch import run  # noqa: PLC0415 - see above

        return run
    if name == "Session":
        from fdl_trainer.session import Session  # noqa: PLC0415 - see above

        return Session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
