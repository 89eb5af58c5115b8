"""A run of fdl's real runtime for a slice: coordinator, agents and ranks, on loopback."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.training.job import Job
from fdl_api.run import ElcheSpec, JoinSpec, Mode
from fdl_api.runconfig import CohortConfig, RunConfig
from tools import loopback

SCRIPT = Path(__file__).with_name("fdl_script.py")


@contextlib.contextmanager
def running(
    folder: Path,
    run: tuple[str, Mapping[str, Any]],
    jobs: Sequence[Job],
    zygote: loopback.Zygote,
    script: Path = SCRIPT,
) -> Iterator[loopback.LoopbackRun]:
    """The run, with all its members started. Without checkpoints and index logs: no other method writes any.

    Args:
        folder: for its files.
        run: mode, and fields of its ElcheSpec.
        jobs: of its ranks.
        zygote: forks its members.
        script: the user's.

    The coordinator is bound to no core: it has a pod of its own in a cluster, here it takes its time from the ranks.
    """
    for job in jobs:
        job.write(folder / f"job-{job.rank}.json")
    world = len(jobs)
    device = jobs[0].device
    cohort = CohortConfig(
        name="cpu",
        vendor="nvidia" if device == "cuda" else "cpu",
        min_replicas=world,
        max_replicas=world,
        devices_per_replica=1,
    )
    values = {
        **loopback.run_values(folder, script, world, [str(folder)]),
        "mode": Mode(run[0]),
        "cohorts": [cohort],
        "join": JoinSpec(min_members=world, target_members=world, window_seconds=60, cap_seconds=120),
        "elche": ElcheSpec.model_validate(dict(run[1])),
        "checkpoint": None,
        "checkpoint_dir": None,
        "audit": False,
    }
    with loopback.started(loopback.LoopbackRun(folder, RunConfig.model_validate(values), zygote)) as started:
        for job in jobs:
            if device == "cuda":
                started.start_member(job.rank, CUDA_VISIBLE_DEVICES=str(job.rank))
            else:
                started.start_member(job.rank)
        yield started


def ended(run: loopback.LoopbackRun) -> bool:
    """Whether a member or the coordinator has ended."""
    assert run.coordinator is not None
    return run.coordinator.poll() is not None or any(member.agent.poll() is not None for member in run.members)
