"""Starting from the newest valid checkpoint."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fdl_api.reasons import Ended
from fdl_api.wire import ParameterSpec
from fdl_trainer import agreed, randomness
from fdl_trainer.agreed import Control
from fdl_trainer.averaging import ModelState
from fdl_trainer.checkpoint import Checkpoint, CheckpointError, newest_valid, require_model
from fdl_trainer.ending import RunEndedError, user_code
from fdl_trainer.ledger import Ledger
from fdl_trainer.manifest import Order

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resumed:
    """What was found to resume from.

    Attributes:
        checkpoint: the newest valid one, or None.
        problem: what was skipped or could not be read, for people; empty when all was well.
        refusal: the end of this rank if the run starts now: the checkpoint is of another model. A joiner of a running
            training does not need the checkpoint, and whether its model is the run's, the coordinator says.
    """

    checkpoint: Checkpoint | None
    problem: str = ""
    refusal: RunEndedError | None = None

    @property
    def order(self) -> Order | None:
        """Place of the checkpoint among the run's; None without one."""
        return self.checkpoint.manifest.order if self.checkpoint is not None else None

    def apply(self, model: nn.Module, optimizer: torch.optim.Optimizer, fresh: Control, place: str) -> Control:
        """Load the checkpoint into model and optimizer.

        Args:
            model: takes parameters and buffers.
            optimizer: takes its state.
            fresh: the state of a run that has not begun; given back when there is no checkpoint.
            place: this rank's place in the run: the random state goes to where it came from.

        Returns:
            The control state to start from.

        Raises:
            RunEndedError: the checkpoint is of another dataset or order, or cannot be loaded after all.
        """
        if self.checkpoint is None:
            return fresh
        try:
            state = self.checkpoint.state()
            model.load_state_dict(self.checkpoint.model())
            optimizer.load_state_dict(self.checkpoint.optimizer())
            control = agreed.from_json(state["control"])
        except (CheckpointError, RuntimeError, ValueError, KeyError) as error:
            text = f"The checkpoint {self.checkpoint.path} verified but cannot be loaded into this script's model and "
            raise user_code(Ended.CHECKPOINT_UNREADABLE, f"{text}optimizer: {str(error)[:600]}") from error
        rng = state.get("rng", {})
        if rng.get("place") == place:
            randomness.restore_if_possible(rng)
        log.info("resuming from %s, window %d", self.checkpoint.path, control.window)
        return replace(control, ledger=_same_data(control.ledger, fresh.ledger, self.checkpoint.path))

    def apply_outer(self, state: ModelState) -> None:
        """Load the outer optimizer's momentum; what is not there starts from zero, which is said.

        Args:
            state: took the model that :meth:`apply` loaded.

        Raises:
            RunEndedError: it cannot be read after all.
        """
        if self.checkpoint is None:
            return
        try:
            missing = state.load_outer(self.checkpoint.outer())
        except CheckpointError as error:
            raise user_code(Ended.CHECKPOINT_UNREADABLE, str(error)) from error
        if missing:
            log.warning(
                "the checkpoint %s has no outer momentum for %d parameters (%s first): it starts from zero",
                self.checkpoint.path,
                len(missing),
                missing[0],
            )


def newest(directory: Path | None, model_digest: str, specs: Sequence[ParameterSpec]) -> Resumed:
    """The newest checkpoint that verifies.

    Args:
        directory: the run's checkpoint directory, or None.
        model_digest: signature of this script's model.
        specs: its entries, to name the first difference.
    """
    if directory is None:
        return Resumed(None)
    try:
        found, problems = newest_valid(directory)
    except CheckpointError as error:
        log.warning("%s", error)
        return Resumed(None, str(error))
    for problem in problems:
        log.warning("%s", problem)
    if found is not None:
        try:
            require_model(found, model_digest, specs)
        except CheckpointError as error:
            return Resumed(None, str(error), user_code(error.reason, str(error)))
    used = f" Checkpoint {found.path.name} is used instead." if found is not None and problems else ""
    return Resumed(found, " ".join(problems) + used if problems else "")


def random_state(place: str) -> dict[str, Any]:
    """This rank's random state, as JSON data for a checkpoint."""
    return {"rng": {"place": place, **randomness.capture()}}


def _same_data(saved: Ledger, fresh: Ledger, path: Path) -> Ledger:
    """The saved books with this script's batch size and number of passes, if they are of the same data."""
    if (saved.samples, saved.seed) != (fresh.samples, fresh.seed):
        raise user_code(
            Ended.DATASET_MISMATCH,
            f"The checkpoint {path} was made with {saved.samples} samples and seed {saved.seed}, and the script has "
            f"{fresh.samples} and {fresh.seed}: with other data, which samples are done has no meaning.",
            data=True,
        )
    if fresh.total < saved.cursor:
        raise user_code(
            Ended.DATASET_MISMATCH,
            f"The checkpoint {path} is at sample {saved.cursor} and the script asks for {fresh.data_epochs} passes, "
            f"{fresh.total} samples: ask for as many passes as before, or more.",
            data=True,
        )
    return replace(saved, batch_size=fresh.batch_size, data_epochs=fresh.data_epochs)
