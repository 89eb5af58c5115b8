"""Puts one rank together: from what the script gave and what the run says to a :class:`fdl_trainer.loop.Loop`."""

import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fdl_api import wire
from fdl_api.reasons import Ended
from fdl_api.run import ElcheSpec, Mode
from fdl_api.runconfig import CohortConfig
from fdl_api.version import WIRE_VERSION
from fdl_trainer import ledger, plan, randomness
from fdl_trainer.audit import AuditLog
from fdl_trainer.averaging import ModelState, NotEnoughMemoryError, UnsupportedModelError, build
from fdl_trainer.cohort import Cohort, Line
from fdl_trainer.control import Channel
from fdl_trainer.datasets import length_of
from fdl_trainer.ending import user_code
from fdl_trainer.epochs import EpochBook
from fdl_trainer.fabric import fabric_of
from fdl_trainer.loader import DataError, Loader
from fdl_trainer.loader.residency import MODEL_COPIES
from fdl_trainer.loop import Loop
from fdl_trainer.member import Member
from fdl_trainer.pairs import Pairs, group_address
from fdl_trainer.pairs.proof import key_of
from fdl_trainer.plan import Control, PlanSpec
from fdl_trainer.progress import Reporter
from fdl_trainer.replica import Replica
from fdl_trainer.resume import Resumed, newest, random_state
from fdl_trainer.saving import FAILED_KEY, Saver, problem_with
from fdl_trainer.signature import dataset_signature, model_signature
from fdl_trainer.solo import SOLO_UID, SoloLine

if TYPE_CHECKING:  # else only where a rank spans several devices: its import takes a second
    from torch.distributed.device_mesh import DeviceMesh

    from fdl_trainer.inner.leader import Leader

log = logging.getLogger(__name__)

Shard = Callable[[nn.Module, "DeviceMesh"], object]
"""Shards a model in place over a mesh."""
DEFAULT_KEEP = 3
DEFAULT_INTERVAL_SECONDS = 300.0


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


def assemble(
    job: Job, member: Member | None, device: torch.device, solo_directory: Path | None, leader: "Leader | None" = None
) -> tuple[Loop, nn.Module]:
    """Build model, optimizer, replicated state and line; nothing is dialled yet.

    Args:
        job: what to train.
        member: this rank's place in a run; None: alone.
        device: of the rank.
        solo_directory: where a rank alone keeps checkpoints.
        leader: of a rank that spans several devices: model and batches stay in the host's memory then.

    Raises:
        RunEndedError: the dataset, the model or a checkpoint cannot be used.
    """
    samples = _checked_samples(job, member)
    device = device if leader is None else torch.device("cpu")
    loader = _loader(job, member, samples, device)
    torch.manual_seed(job.seed)
    model = job.model().to(device)
    optimizer = job.optimizer(model.parameters()) if leader is None else leader.build(model, job.optimizer)
    try:
        model_digest, specs = model_signature(model)
        state = _state(model, optimizer, member, device, leader)
    except ValueError as error:
        raise user_code(Ended.SCRIPT_RAISED, f"The script's model cannot be trained by fdl: {error}") from error
    directory = _directory(member, solo_directory)
    resumed = newest(directory, model_digest, specs)
    _seed_rank(job.seed, member, resumed.checkpoint.window if resumed.checkpoint is not None else 0)
    spec = PlanSpec.of(
        member.config.mode if member else Mode.CPU_CADENCE, member.config.elche if member else ElcheSpec()
    )
    control = plan.create(ledger.create(samples, job.batch_size, job.epochs, job.seed), spec)
    control = resumed.apply(model, optimizer, control, place_of(member))
    state.capture()
    resumed.apply_outer(state)

    book = EpochBook(member.rank_uid if member else SOLO_UID)
    hello = _Hello(
        member,
        model_digest=model_digest,
        specs=specs,
        data_digest=_data_digest(job),
        control=control,
        resumed=resumed,
    )
    hello.pairs = pairs = _pairs(member)
    cohort = Cohort(
        member.address if member else "127.0.0.1",
        book,
        lambda on_epoch: _line(member, book, hello, on_epoch),
        fabric_of(member, device),
        pairs,
    )
    saver = _saver(directory, member, (model_digest, specs), resumed, cohort.line)
    replica = Replica(
        state,
        optimizer,
        control,
        spec,
        writable=saver is not None,
        attempt=member.config.attempt if member else 1,
        origin=resumed.order[:2] if resumed.order is not None else (0, 0),
    )
    audit = _audit(directory, member)
    reporter = hello.reporter = Reporter(cohort.line, control)
    loader.audit = audit
    hello.data = _load(loader, MODEL_COPIES * sum(parameter.numel() * 4 for parameter in model.parameters()))
    place = place_of(member)
    loop = Loop(book.uid, cohort, replica, loader, reporter, saver, audit, lambda: random_state(place))
    loop.refusal = resumed.refusal
    cohort.line.pulse.phase = wire.Phase.WAIT
    return loop, model


def _state(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    member: Member | None,
    device: torch.device,
    leader: "Leader | None",
) -> ModelState:
    """The committed state, not captured yet."""
    mode = member.config.mode if member else Mode.CPU_CADENCE
    knobs = member.config.elche if member else ElcheSpec()
    try:
        make = ModelState if leader is None else leader.state
        return build(model, optimizer, knobs, mode, device, sharers=_sharers(member), make=make)
    except UnsupportedModelError as error:
        raise user_code(Ended.SCRIPT_RAISED, str(error)) from error
    except NotEnoughMemoryError as error:
        raise user_code(Ended.OUT_OF_MEMORY, str(error)) from error


def _loader(job: Job, member: Member | None, samples: int, device: torch.device) -> Loader:
    """The loader, with its worker processes: they are forked before a model touches the device."""
    reading = job.reading
    if reading.on_sample_error not in ("raise", "skip") or reading.workers < 0:
        raise user_code(
            Ended.SCRIPT_RAISED,
            f'session.setup was given workers={reading.workers} and on_sample_error="{reading.on_sample_error}": '
            'workers must be at least 0 and on_sample_error "raise" or "skip".',
        )
    loader = Loader(
        job.dataset,
        samples=samples,
        seed=job.seed,
        device=device,
        collate=job.collate,
        rank=place_of(member),
        workers=reading.workers,
        skip=reading.on_sample_error == "skip",
        wish=reading.resident,
        sharers=_sharers(member),
    )
    loader.start_workers()
    return loader


def _sharers(member: Member | None) -> int:
    """Ranks that share the memory of this one's container."""
    if member is None:
        return 1
    cohort = member.config.cohort(member.cohort)
    return cohort.ranks_per_replica if cohort is not None else 1


def _load(loader: Loader, reserved_bytes: int) -> str:
    """Load what is resident; returns what was decided, in a few words."""
    try:
        return loader.load(reserved_bytes).note
    except DataError as error:
        raise user_code(Ended.SCRIPT_RAISED, str(error), data=True) from error


class _Hello:
    """Makes this rank's Hello: its first one, and those of a rank that trains already."""

    def __init__(
        self,
        member: Member | None,
        *,
        model_digest: str,
        specs: list[wire.ParameterSpec],
        data_digest: str,
        control: Control,
        resumed: Resumed,
    ) -> None:
        self.reporter: Reporter | None = None
        self.pairs: Pairs | None = None
        self.data = ""
        self._member = member
        self._model_digest = model_digest
        self._specs = specs
        self._data_digest = data_digest
        self._books = control.ledger
        attempt, epoch, _ = resumed.order or (0, 0, 0)
        self._start = wire.Position(epoch=epoch, window=control.window, attempt=attempt)
        self._problem = resumed.problem

    def __call__(self) -> wire.RankHello:
        member, reporter = self._member, self.reporter
        assert member is not None
        return wire.RankHello(
            wire_version=WIRE_VERSION,
            run_uid=member.config.run_uid,
            attempt=member.config.attempt,
            member_uid=member.uid,
            member=member.name,
            cohort=member.cohort,
            local_rank=member.local_rank,
            address=member.address,
            model_digest=self._model_digest,
            model=self._specs,
            dataset_digest=self._data_digest,
            dataset_samples=self._books.samples,
            total_samples=self._books.total,
            committed=reporter.position() if reporter is not None else self._start,
            checkpoint_error=self._problem[:1024],
            data=self.data,
            reach=self.pairs.reach if self.pairs is not None else None,
            echo=reporter.echo() if reporter is not None else None,
        )


def _pairs(member: Member | None) -> Pairs | None:
    """What tests the ways to other ranks; it listens already, since others may dial right after this rank's Hello."""
    if member is None:
        return None
    address = group_address(member.config.mode, member.address, os.environ)
    pairs = Pairs(member.rank_uid, key_of(member.endpoint.token), address)
    pairs.start()
    return pairs


def _line(member: Member | None, book: EpochBook, hello: _Hello, on_epoch: Callable[[wire.Epoch], None]) -> Line:
    return Channel(member.endpoint, hello, book, on_epoch) if member else SoloLine(book, on_epoch)


def _checked_samples(job: Job, member: Member | None) -> int:
    try:
        samples = length_of(job.dataset)
    except (TypeError, ValueError) as error:
        raise user_code(
            Ended.DATASET_TOO_SMALL,
            f"Rank {place_of(member)}: the dataset of session.setup cannot be used: {error}.",
            data=True,
        ) from error
    if job.batch_size < 1 or job.epochs < 1:
        raise user_code(
            Ended.SCRIPT_RAISED,
            f"Rank {place_of(member)}: batch_size is {job.batch_size} and epochs {job.epochs} in session.setup: both "
            "must be at least 1.",
        )
    if samples < job.batch_size:
        log.warning(
            "Rank %s: batch_size of session.setup is %d and the dataset has %d samples: every batch has those; lower "
            "batch_size if that is not meant",
            place_of(member),
            job.batch_size,
            samples,
        )
    ranks = ranks_wanted(member.config.cohorts) if member else 1
    if samples < ranks:
        raise user_code(
            Ended.DATASET_TOO_SMALL,
            f"Rank {place_of(member)}: the dataset of session.setup has {samples} samples and the run wants {ranks} "
            "ranks: some could never train. Use more data, or fewer members (replicas in spec.cohorts).",
            data=True,
        )
    batches = -(-samples // job.batch_size)
    if batches < ranks:
        log.warning(
            "a pass over the data has %d batches of %d samples and the run wants %d ranks: some have nothing to do in "
            "it; make the batches smaller",
            batches,
            job.batch_size,
            ranks,
        )
    return samples


def ranks_wanted(cohorts: Iterable[CohortConfig]) -> int:
    """Ranks that a run's spec asks for, of all wanted members.

    Not the fewest that it would go on with: minReplicas is 0 and join.minMembers 1 by default, so that these say
    nothing about a dataset that is too small for the members which the user asked for. Nor the most that a cohort may
    be scaled to.
    """
    return sum(item.wanted_ranks for item in cohorts)


def _data_digest(job: Job) -> str:
    try:
        skips = job.reading.on_sample_error == "skip"
        return dataset_signature(job.dataset, job.batch_size, job.epochs, job.seed, skips=skips)
    except Exception as error:
        text = f"The dataset could not be read ({type(error).__name__}: {error}): check the data directory."
        raise user_code(Ended.SCRIPT_RAISED, text, data=True) from error


def _directory(member: Member | None, solo: Path | None) -> Path | None:
    if member is None:
        return solo
    return Path(member.config.checkpoint_dir) if member.config.checkpoint_dir else None


def _saver(
    directory: Path | None,
    member: Member | None,
    signature: tuple[str, list[wire.ParameterSpec]],
    resumed: Resumed,
    line: Line,
) -> Saver | None:
    if directory is None:
        return None
    problem = problem_with(directory)
    if problem:
        log.warning("%s", problem)
        failed = wire.CheckpointFailed(window=0, reason=Ended.CHECKPOINT_UNREADABLE, message=problem[:1024])
        line.send(failed, sticky=FAILED_KEY)
        return None
    spec = member.config.checkpoint if member else None
    return Saver(
        directory,
        keep=spec.keep if spec else DEFAULT_KEEP,
        interval_seconds=spec.interval_seconds if spec else DEFAULT_INTERVAL_SECONDS,
        attempt=member.config.attempt if member else 1,
        name=member.rank_uid if member else SOLO_UID,
        model_digest=signature[0],
        specs=signature[1],
        resumed=resumed.order,
        send=line.send,
        forget=line.forget,
    )


def _audit(directory: Path | None, member: Member | None) -> AuditLog | None:
    if member is None or directory is None or not member.config.audit:
        return None
    return AuditLog(directory / "audit", member.name, member.local_rank, member.rank_uid, member.config.attempt)


def place_of(member: Member | None) -> str:
    """A rank's place in the run, the same for all incarnations."""
    return f"{member.cohort}-{member.ordinal}/{member.local_rank}" if member else SOLO_UID


def _seed_rank(seed: int, member: Member | None, window: int) -> None:
    """Give each place noise of its own (dropout, augmentation); the model was made with the common seed.

    The window that is started from counts too: only the rank that wrote the checkpoint goes on with its noise, and the
    others must not repeat theirs from the start.
    """
    torch.manual_seed(randomness.seed_host(f"{seed} {place_of(member)} {window}"))
