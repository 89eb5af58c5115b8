"""What this rank's groups are made of, or why it cannot take part."""

import torch

from fdl_api.exitcodes import PodExit
from fdl_api.reasons import Ended
from fdl_api.termination import Cause
from fdl_trainer.ending import RunEndedError
from fdl_trainer.groups import Fabric
from fdl_trainer.groups.nccl import nccl_version, refusal
from fdl_trainer.member import Member


def fabric_of(member: Member | None, device: torch.device) -> Fabric:
    """The fabric of a rank's run.

    Args:
        member: this rank's place in a run; None: it trains alone.
        device: what it trains on.

    Raises:
        RunEndedError: the run's mode needs something that this rank does not have.
    """
    if member is None:
        return Fabric(device=device)
    config = member.config
    version: tuple[int, ...] = ()
    if config.mode.is_nccl:
        version = nccl_version() or ()
        why = refusal(version or None, device, f"Rank {member.local_rank} of {member.name} on node {member.host}")
        if why is not None:
            raise RunEndedError(PodExit.REFUSED, Ended.REFUSED, why, Cause.INFRASTRUCTURE, permanent=True)
    return Fabric.of(config.mode, device, config.cohorts, version)
