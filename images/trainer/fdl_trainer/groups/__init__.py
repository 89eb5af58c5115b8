"""Process groups, one for each membership epoch, and the only way to wait inside a collective.

* :mod:`~fdl_trainer.groups.contract`: what the window loop needs of a group;
* :mod:`~fdl_trainer.groups.form`: which group a run's mode and members get;
* :mod:`~fdl_trainer.groups.gloo`, :mod:`~fdl_trainer.groups.nccl`, :mod:`~fdl_trainer.groups.tiered`: the groups;
* :mod:`~fdl_trainer.groups.reaper`: what was abandoned.
"""

from fdl_trainer.groups.contract import (
    CollectiveFailedError,
    Group,
    Interrupt,
    InterruptedCollectiveError,
    LocalGroup,
)
from fdl_trainer.groups.form import Fabric, Place, form
from fdl_trainer.groups.reaper import Reaper

__all__ = [
    "CollectiveFailedError",
    "Fabric",
    "Group",
    "Interrupt",
    "InterruptedCollectiveError",
    "LocalGroup",
    "Place",
    "Reaper",
    "form",
]
