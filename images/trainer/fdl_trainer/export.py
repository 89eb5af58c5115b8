"""Turn a checkpoint into a file that plain torch loads.

``python -m fdl_trainer.export CHECKPOINT OUT`` writes the model's state dict; read it with
``model.load_state_dict(torch.load(OUT, weights_only=True))``.
"""

import argparse
import os
import sys
from pathlib import Path

import torch

from fdl_api.reasons import Ended
from fdl_trainer.checkpoint import CheckpointError, newest_valid, open_checkpoint
from fdl_trainer.manifest import FILE, sync_directory


def export(source: Path, out: Path) -> int:
    """Write the model of a checkpoint as one file, whole or not at all.

    Args:
        source: a checkpoint's directory, or a run's checkpoint directory (then its newest valid one).
        out: the file to write; one that is there is replaced.

    Returns:
        The window that the checkpoint holds.

    Raises:
        CheckpointError: if there is no valid checkpoint.
        OSError: if the file cannot be written.
    """
    if (source / FILE).exists() or source.name.startswith("ckpt-"):
        found = open_checkpoint(source)
    else:
        newest, problems = newest_valid(source)
        if newest is None:
            skipped = " ".join(problems) or "It holds no directory ckpt-<window>."
            raise CheckpointError(Ended.NO_CHECKPOINT, f"There is no valid checkpoint in {source}. {skipped}")
        found = newest
    temporary = out.with_name(f".{out.name}.tmp-{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            torch.save(found.model(), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(out.parent)
    return found.window


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fdl_trainer.export", description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="a checkpoint's directory, or the run's (newest valid one)")
    parser.add_argument("out", type=Path, help="file to write, e.g. model.pt")
    options = parser.parse_args(arguments)
    try:
        window = export(options.checkpoint, options.out)
    except (CheckpointError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{options.out}: the model after window {window}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
