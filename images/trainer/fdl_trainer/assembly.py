"""Puts one rank together: from what the script gave and what the run says to a :class:`fdl_trainer.loop.Loop`."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from fdl_api import wire
from fdl_api.reasons import Ended
from fdl_api.run import ElcheSpec, Mode
from fdl_trainer import ledger, plan, randomness
from fdl_trainer.audit import AuditLog
from fdl_trainer.averaging import ModelState, NotEnoughMemoryError, UnsupportedModelError, build
from fdl_trainer.cohort import Cohort, Line
from fdl_trainer.control import Channel
from fdl_trainer.ending import user_code
from fdl_trainer.epochs import EpochBook
from fdl_trainer.fabric import fabric_of
from fdl_trainer.hello import Hello
from fdl_trainer.job import Job, checked_samples, data_digest
from fdl_trainer.loader import DataError, Loader
from fdl_trainer.loader.residency import MODEL_COPIES
from fdl_trainer.loop import Loop
from fdl_trainer.member import SOLO_UID, Member, place_of
from fdl_trainer.pairs import Pairs, group_address
from fdl_trainer.pairs.proof import key_of
from fdl_trainer.plan import PlanSpec
from fdl_trainer.progress import Reporter
from fdl_trainer.replica import Replica
from fdl_trainer.resume import Resumed, newest, random_state
from fdl_trainer.saving import FAILED_KEY, Saver, problem_with
from fdl_trainer.signature import model_signature
from fdl_trainer.solo import SoloLine

if TYPE_CHECKING:  # else only where a rank spans several devices: FSDP2's import takes a second
    from fdl_trainer.inner.leader import Leader

log = logging.getLogger(__name__)

DEFAULT_KEEP = 3
DEFAULT_INTERVAL_SECONDS = 300.0


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
    samples = checked_samples(job, member)
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
    hello = Hello(
        member,
        model_digest=model_digest,
        specs=specs,
        data_digest=data_digest(job),
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


def _pairs(member: Member | None) -> Pairs | None:
    """What tests the ways to other ranks; it listens already, since others may dial right after this rank's Hello."""
    if member is None:
        return None
    address = group_address(member.config.mode, member.address, os.environ)
    pairs = Pairs(member.rank_uid, key_of(member.endpoint.token), address)
    pairs.start()
    return pairs


def _line(member: Member | None, book: EpochBook, hello: Hello, on_epoch: Callable[[wire.Epoch], None]) -> Line:
    return Channel(member.endpoint, hello, book, on_epoch) if member else SoloLine(book, on_epoch)


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


def _seed_rank(seed: int, member: Member | None, window: int) -> None:
    """Give each place noise of its own (dropout, augmentation); the model was made with the common seed.

    The window that is started from counts too: only the rank that wrote the checkpoint goes on with its noise, and the
    others must not repeat theirs from the start.
    """
    torch.manual_seed(randomness.seed_host(f"{seed} {place_of(member)} {window}"))
