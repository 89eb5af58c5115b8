"""Random state of a rank: saved with a checkpoint, and held still while samples are compared.

All of it is JSON data (bytes as base64), so that reading it runs no code.
"""

import base64
import hashlib
import logging
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

log = logging.getLogger(__name__)


def capture() -> dict[str, Any]:
    """State of Python's and NumPy's module-level generators and of torch's, as JSON data.

    Of CUDA's generators only that of the present device is taken, and only if this process uses CUDA: a rank has one.
    """
    version, internal, gauss_next = random.getstate()
    state = {
        "torch": _encoded(torch.get_rng_state()),
        "python": [version, list(internal), gauss_next],
        "numpy": _plain(np.random.get_state(legacy=False)),
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = _encoded(torch.cuda.get_rng_state())
    return state


def restore(state: Mapping[str, Any]) -> None:
    """Put the generators back to a captured state.

    CUDA's comes back where it was captured and this process has a device; it is not asked for on a CPU.

    Raises:
        KeyError: a generator's state is missing.
        TypeError: the data is no captured state.
        ValueError: a generator does not take its state: it is of another kind or version.
        RuntimeError: the same, said by torch.
    """
    torch.set_rng_state(_decoded(state["torch"]))
    version, internal, gauss_next = state["python"]
    random.setstate((version, tuple(internal), gauss_next))
    np.random.set_state(_unplain(state["numpy"]))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(_decoded(state["cuda"]))


def restore_if_possible(state: Mapping[str, Any]) -> bool:
    """Like :func:`restore`, for a checkpoint: noise of another release is no reason not to train.

    Returns:
        False, with the generators as they were, when the state does not fit this process.
    """
    before = capture()
    try:
        restore(state)
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        log.info(
            "the checkpoint's random state does not fit here (%s: %s); new noise is used", type(error).__name__, error
        )
        restore(before)
        return False
    return True


def seed_host(words: str) -> int:
    """Seed Python's, NumPy's and torch's CPU generator by a text.

    Returns:
        The number that torch's got, for a device's generator.
    """
    mixed = hashlib.sha256(words.encode()).digest()
    number = int.from_bytes(mixed[:7], "big")
    torch.default_generator.manual_seed(number)
    random.seed(number)
    np.random.seed(int.from_bytes(mixed[:4], "big"))
    return number


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


def _encoded(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def _decoded(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


def _plain(value: Any) -> Any:
    """NumPy's state as JSON data: arrays become lists with their type."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": str(value.dtype)}
    return value.item() if isinstance(value, np.generic) else value


def _unplain(value: Any) -> Any:
    """Inverse of :func:`_plain`."""
    if not isinstance(value, Mapping):
        return value
    if set(value) == {"array", "dtype"}:
        return np.asarray(value["array"], dtype=value["dtype"])
    return {key: _unplain(item) for key, item in value.items()}
