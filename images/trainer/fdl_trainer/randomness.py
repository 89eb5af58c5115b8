"""Random state of a rank: saved with a checkpoint, and held still while samples are compared."""

import base64
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def capture() -> dict[str, Any]:
    """State of torch's CPU generator and of Python's and numpy's module-level ones, as JSON data."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    version, internal, gauss_next = random.getstate()
    return {
        "torch": base64.b64encode(torch.get_rng_state().numpy().tobytes()).decode(),
        "python": [version, list(internal), gauss_next],
        "numpy": [kind, np.asarray(keys).tolist(), position, has_gauss, gauss],
    }


def restore(state: Mapping[str, Any]) -> None:
    """Put the generators back to a captured state.

    Raises:
        KeyError: if the data is no captured state.
    """
    torch.set_rng_state(torch.frombuffer(bytearray(base64.b64decode(state["torch"])), dtype=torch.uint8))
    version, internal, gauss_next = state["python"]
    random.setstate((version, tuple(internal), gauss_next))
    kind, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, np.asarray(keys, dtype=np.uint32), position, has_gauss, gauss))


@contextmanager
def held(seed: int) -> Iterator[None]:
    """Run the body with all generators seeded, and put them back afterwards."""
    before = capture()
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        restore(before)
