"""Checkpoints on a volume: written whole or not at all, read only when they verify, never unpickled.

A checkpoint is a directory ``ckpt-<window>`` with

* ``model.safetensors``: the committed parameters and buffers by the names of the model's state dict;
* ``optim.safetensors``: the writer's optimizer state (:mod:`fdl_trainer.treefile`);
* ``outer.safetensors``: the outer optimizer's momentum by parameter, where the run has one;
* ``state.json``: replicated control state, random state, signatures, whatever else the session needs;
* ``MANIFEST.json``, written last (:mod:`fdl_trainer.manifest`).

It is written under another name, made durable, and renamed once its window is settled. Which of two checkpoints is the
newer, their manifests tell (:data:`fdl_trainer.manifest.Order`), not the numbers in their names.
"""

import errno
import json
import os
import platform
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as save_tensors

from fdl_api.reasons import Ended
from fdl_api.version import VERSION
from fdl_api.wire import ParameterSpec
from fdl_trainer import manifest as manifests
from fdl_trainer import treefile
from fdl_trainer.manifest import InvalidCheckpointError, Manifest, Order
from fdl_trainer.signature import first_difference

MODEL_FILE, OPTIMIZER_FILE, STATE_FILE = "model.safetensors", "optim.safetensors", "state.json"
OUTER_FILE = "outer.safetensors"
MODEL_SPECS = "model"
"""Key of the snapshot's state with the model's entries, so that a refusal can name the first difference."""
PREFIX, TEMPORARY_PREFIX, REPLACED_PREFIX = "ckpt-", ".tmp-", ".old-"
NAME = re.compile(r"^ckpt-(\d{8,})$")
_ASIDE = re.compile(r"^\.old-(\d{8,})-")


class CheckpointError(Exception):
    """A checkpoint could not be written, read or used.

    Args:
        reason: stable reason for status and termination messages.
        message: what went wrong, where, and what to do.
    """

    def __init__(self, reason: Ended, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Snapshot:
    """An immutable copy of a committed window, taken at its boundary.

    Args:
        window: the committed window.
        samples: samples committed up to it.
        attempt: attempt of the run.
        model: state dict with tensors of its own (:func:`copy_tensors`), on any device.
        optimizer: the optimizer's state dict, copied likewise (:func:`fdl_trainer.treefile.copied`).
        state: JSON data: control state, random state and so on.
        model_digest: SHA-256 (hex) of the model's signature.
        outer: the outer optimizer's momentum by parameter; empty without one.
        final: no sample is left to train.
        stall_ms: how long training stood still for the copy, milliseconds.
        epoch: membership epoch in which it was taken.
    """

    window: int
    samples: int
    attempt: int
    model: Mapping[str, torch.Tensor]
    optimizer: Any
    state: Mapping[str, Any]
    model_digest: str
    outer: Mapping[str, torch.Tensor] = field(default_factory=dict)
    final: bool = False
    stall_ms: float = 0.0
    epoch: int = 0

    @property
    def order(self) -> Order:
        """Its place among the run's checkpoints."""
        return self.attempt, self.epoch, self.window


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that verified."""

    path: Path
    manifest: Manifest
    problems: tuple[str, ...] = field(default=())

    @property
    def window(self) -> int:
        """Committed window that it holds."""
        return self.manifest.window

    def model(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers on the CPU, by name.

        Raises:
            CheckpointError: if the file went bad since it verified.
        """
        try:
            return load_file(self.path / MODEL_FILE)
        except (OSError, SafetensorError) as error:
            raise unreadable(self.path, str(error)) from error

    def optimizer(self) -> Any:
        """The optimizer's state dict, tensors on the CPU.

        Raises:
            CheckpointError: if the file went bad since it verified.
        """
        try:
            return treefile.unpack((self.path / OPTIMIZER_FILE).read_bytes())
        except (OSError, ValueError) as error:
            raise unreadable(self.path, str(error)) from error

    def outer(self) -> dict[str, torch.Tensor]:
        """The outer optimizer's momentum by parameter, on the CPU; empty if the run that wrote it had none.

        Raises:
            CheckpointError: if the file went bad since it verified.
        """
        if OUTER_FILE not in self.manifest.files:
            return {}
        try:
            return load_file(self.path / OUTER_FILE)
        except (OSError, SafetensorError) as error:
            raise unreadable(self.path, str(error)) from error

    def state(self) -> dict[str, Any]:
        """The JSON data of the snapshot.

        Raises:
            CheckpointError: if the file went bad since it verified.
        """
        try:
            data = json.loads((self.path / STATE_FILE).read_bytes())
        except (OSError, ValueError) as error:
            raise unreadable(self.path, str(error)) from error
        assert isinstance(data, dict)
        return data


def copy_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies with memory of their own, on the tensors' devices, so that training may go on over the originals."""
    return {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}


def directory_name(window: int) -> str:
    """Name of a checkpoint's directory, e.g. ``ckpt-00000012``."""
    return f"{PREFIX}{window:08d}"


def prepare(root: Path, snapshot: Snapshot, writer: str) -> Path:
    """Write a snapshot in full under a temporary name and make it durable.

    :func:`fdl_trainer.publishing.publish` gives it its name.

    Args:
        root: the run's checkpoint directory; made if it is not there.
        snapshot: what to write.
        writer: name of the writing rank, part of the temporary name.

    Raises:
        CheckpointError: if the volume is full or refuses, or what was written does not read back.
    """
    safe_writer = re.sub(r"[^A-Za-z0-9]", "_", writer)
    place = f"{snapshot.window:08d}-{snapshot.attempt}-{snapshot.epoch}-{safe_writer}"
    temporary = root / f"{TEMPORARY_PREFIX}{place}"
    try:
        if not root.exists():
            root.mkdir(parents=True, exist_ok=True)
            manifests.sync_directory(root.parent)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        files = {
            MODEL_FILE: manifests.write_file(temporary / MODEL_FILE, _model_bytes(snapshot.model)),
            OPTIMIZER_FILE: manifests.write_file(temporary / OPTIMIZER_FILE, treefile.pack(snapshot.optimizer)),
            STATE_FILE: manifests.write_file(temporary / STATE_FILE, json.dumps(snapshot.state).encode()),
        }
        if snapshot.outer:
            files[OUTER_FILE] = manifests.write_file(temporary / OUTER_FILE, _model_bytes(snapshot.outer))
        manifests.write(
            temporary,
            Manifest(
                window=snapshot.window,
                samples=snapshot.samples,
                attempt=snapshot.attempt,
                epoch=snapshot.epoch,
                final=snapshot.final,
                model_digest=snapshot.model_digest,
                versions=versions(),
                files=files,
            ),
        )
    except (OSError, InvalidCheckpointError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise write_error(root, snapshot.window, error) from error
    return temporary


def newest_valid(root: Path) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint of the highest order that verifies, and a sentence for each newer one that does not.

    One whose manifest cannot be read has no order; it counts as newer when its number is higher.

    Args:
        root: the run's checkpoint directory; need not exist.

    Raises:
        CheckpointError: if the directory cannot be read at all, so that nobody knows what it holds.
    """
    unread: list[tuple[int, str]] = []
    ordered: list[tuple[Order, Path]] = []
    for window, path in _candidates(root):
        try:
            manifest = manifests.read(path)
            if manifest.window != window:
                raise InvalidCheckpointError(f"its manifest is of window {manifest.window}: it was renamed")
            ordered.append((manifest.order, path))
        except InvalidCheckpointError as error:
            unread.append((window, _skipped(path, error)))
    problems: list[str] = []
    for _, path in sorted(ordered, reverse=True):
        try:
            manifest = manifests.verify(path)
        except InvalidCheckpointError as error:
            problems.append(_skipped(path, error))
            continue
        problems = [text for window, text in unread if window > manifest.window] + problems
        return Checkpoint(path, manifest, tuple(problems)), problems
    return None, [text for _, text in unread] + problems


def _skipped(path: Path, error: InvalidCheckpointError) -> str:
    return f"Checkpoint {path.name} in {path.parent} is skipped: {error}."


def open_checkpoint(path: Path) -> Checkpoint:
    """One checkpoint directory, verified.

    Raises:
        CheckpointError: if it does not verify.
    """
    try:
        return Checkpoint(path, manifests.verify(path))
    except InvalidCheckpointError as error:
        raise unreadable(path, str(error)) from error


def require_model(found: Checkpoint, digest: str, specs: Sequence[ParameterSpec]) -> None:
    """Refuse a checkpoint of another model.

    Args:
        found: the checkpoint that would be resumed from.
        digest: SHA-256 (hex) of this script's model (:func:`fdl_trainer.signature.model_signature`).
        specs: its entries, to name the first difference.

    Raises:
        CheckpointError: with both digests and the first entry in which the models differ.
    """
    if found.manifest.model_digest == digest:
        return
    theirs = [ParameterSpec.model_validate(spec) for spec in found.state().get(MODEL_SPECS, [])]
    difference = first_difference(specs, theirs, "in the script", "in the checkpoint") if theirs else ""
    raise CheckpointError(
        Ended.MODEL_MISMATCH,
        f"The checkpoint {found.path} is of another model: its signature is {found.manifest.model_digest[:12]}, the "
        f"script's is {digest[:12]}. {difference} Restore the model that was trained, or start a run of another name.",
    )


def specs_json(specs: Sequence[ParameterSpec]) -> list[dict[str, Any]]:
    """A model's entries as the value of :data:`MODEL_SPECS` in a snapshot's state."""
    return [spec.model_dump(mode="json", by_alias=True) for spec in specs]


def versions() -> dict[str, str]:
    """Versions of the programs that write a checkpoint."""
    return {"fdl": VERSION, "torch": str(torch.__version__), "python": platform.python_version()}


def unreadable(path: Path, why: str) -> CheckpointError:
    """The error for a checkpoint that cannot be used."""
    return CheckpointError(
        Ended.CHECKPOINT_UNREADABLE,
        f"The checkpoint {path} cannot be used: {why}. Restore it from a copy, or delete it to use an older one.",
    )


def _candidates(root: Path) -> list[tuple[int, Path]]:
    """Directories with a checkpoint's name, or put aside while one was replaced, highest number first."""
    try:
        paths = list(root.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(
            Ended.CHECKPOINT_UNREADABLE,
            f"The checkpoint directory {root} cannot be read ({error.strerror}). Check the claim of spec.checkpoint "
            f"and that user {os.getuid()} may read and write it.",
        ) from error
    found = [(int(match[1]), path) for path in paths if (match := NAME.match(path.name) or _ASIDE.match(path.name))]
    return sorted(found, reverse=True)


def _model_bytes(model: Mapping[str, torch.Tensor]) -> bytes:
    cpu = {name: tensor.detach().to("cpu").contiguous() for name, tensor in model.items()}
    return save_tensors(cpu, metadata={"format": "pt"})


def write_error(root: Path, window: int, error: Exception) -> CheckpointError:
    """The error for a checkpoint that cannot be written."""
    code = error.errno if isinstance(error, OSError) else None
    what = error.strerror if isinstance(error, OSError) else str(error)
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return CheckpointError(
            Ended.CHECKPOINT_FULL,
            f"Checkpoint {window} could not be written to {root}: {what}. Free space on the claim of spec.checkpoint, "
            "enlarge it, or lower spec.checkpoint.keep.",
        )
    return CheckpointError(
        Ended.CHECKPOINT_UNREADABLE,
        f"Checkpoint {window} could not be written to {root}: {what}. Check the claim of spec.checkpoint and that user "
        f"{os.getuid()} may write to it.",
    )
