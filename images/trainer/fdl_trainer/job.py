"""What a script asks for in ``session.setup``, and whether its figures and its data can do."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fdl_api.batches import too_large
from fdl_api.reasons import Ended
from fdl_api.runconfig import CohortConfig
from fdl_trainer.datasets import length_of
from fdl_trainer.ending import user_code
from fdl_trainer.member import Member, place_of
from fdl_trainer.signature import dataset_signature

if TYPE_CHECKING:  # else only where a rank spans several devices: its import takes a second
    from torch.distributed.device_mesh import DeviceMesh

log = logging.getLogger(__name__)

Shard = Callable[[nn.Module, "DeviceMesh"], object]
"""Shards a model in place over a mesh."""


@dataclass(frozen=True)
class Reading:
    """How the dataset is read: the arguments of ``session.setup`` of these names."""

    workers: int = 0
    on_sample_error: str = "raise"
    resident: bool | None = None


@dataclass(frozen=True)
class Job:
    """The arguments of ``session.setup``."""

    model: Callable[[], nn.Module]
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    dataset: Any
    batch_size: int
    epochs: int
    seed: int
    collate: Callable[[list[Any]], Any] | None
    reading: Reading = field(default_factory=Reading)
    shard: Shard | None = None


def checked_samples(job: Job, member: Member | None) -> int:
    """Samples of the job's dataset.

    Raises:
        RunEndedError: it has none, or fewer than ranks, or the job's figures are none that can be trained.
    """
    place = place_of(member)
    try:
        samples = length_of(job.dataset)
    except (TypeError, ValueError) as error:
        raise user_code(
            Ended.DATASET_TOO_SMALL,
            f"Rank {place}: the dataset of session.setup cannot be used: {error}.",
            data=True,
        ) from error
    if job.batch_size < 1 or job.epochs < 1:
        raise user_code(
            Ended.SCRIPT_RAISED,
            f"Rank {place}: batch_size is {job.batch_size} and epochs {job.epochs} in session.setup: both must be at "
            "least 1.",
        )
    ranks = ranks_wanted(member.config.cohorts) if member else 1
    if samples < ranks:
        raise user_code(
            Ended.DATASET_TOO_SMALL,
            f"Rank {place}: the dataset of session.setup has {samples} samples and the run wants {ranks} ranks: some "
            "could never train. Use more data, or fewer members (replicas in spec.cohorts).",
            data=True,
        )
    if note := too_large(f"Rank {place}", job.batch_size, samples, ranks):
        log.warning("%s", note)
    return samples


def ranks_wanted(cohorts: Iterable[CohortConfig]) -> int:
    """Ranks that a run's spec asks for, of all wanted members.

    Not the fewest that it would go on with: minReplicas is 0 and join.minMembers 1 by default, so that these say
    nothing about a dataset that is too small for the members which the user asked for. Nor the most that a cohort may
    be scaled to.
    """
    return sum(item.wanted_ranks for item in cohorts)


def data_digest(job: Job) -> str:
    """Signature of the job's data, of which some samples are read.

    Raises:
        RunEndedError: they cannot be read.
    """
    try:
        skips = job.reading.on_sample_error == "skip"
        return dataset_signature(job.dataset, job.batch_size, job.epochs, job.seed, skips=skips)
    except Exception as error:
        text = f"The dataset could not be read ({type(error).__name__}: {error}): check the data directory."
        raise user_code(Ended.SCRIPT_RAISED, text, data=True) from error
