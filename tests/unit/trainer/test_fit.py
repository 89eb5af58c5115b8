from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from fdl_trainer.ending import RunEndedError
from fdl_trainer.fit import Accumulator, largest_fitting, micro_batches, part

CPU = torch.device("cpu")


@given(limit=st.integers(0, 600), failed=st.integers(2, 600))
def test_the_largest_size_that_fits_is_found_in_few_tries(limit: int, failed: int) -> None:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= limit

    assert largest_fitting(fits, failed) == min(limit, failed - 1)
    assert len(tried) <= 2 * failed.bit_length() and all(1 <= size < failed for size in tried)


@given(samples=st.integers(1, 1000), limit=st.integers(1, 1000))
def test_parts_are_few_and_nearly_equal(samples: int, limit: int) -> None:
    sizes = micro_batches(samples, limit)
    assert sum(sizes) == samples and max(sizes) <= limit
    assert max(sizes) - min(sizes) <= 1 and (len(sizes) - 1) * limit < samples


class Pair(NamedTuple):
    x: torch.Tensor
    names: list[str]


def test_a_part_of_a_nested_batch_has_its_structure() -> None:
    x = torch.arange(12).reshape(4, 3)
    data = {
        "pair": Pair(x, ["a", "b", "c", "d"]),
        "scale": torch.tensor(2.0),
        "both": (x, x),
        "boxes": list(x.unbind()),
    }
    cut = part(data, 1, 3, 4)
    assert torch.equal(cut["pair"].x, x[1:3]) and isinstance(cut["pair"], Pair) and cut["pair"].names == ["b", "c"]
    assert cut["scale"] == 2.0 and [item.shape[0] for item in cut["both"]] == [2, 2] and len(cut["boxes"]) == 2
    images = [torch.zeros(3, size) for size in (5, 6)]
    assert part(images, 1, 2, 2)[0].shape == (3, 6)
    with pytest.raises(ValueError, match=r"batch\['x'\]\[0\] has the shape \(7, 2\), .* not the 4 samples"):
        part({"x": [torch.zeros(7, 2)]}, 0, 1, 4)


class Small(nn.Module):
    """A net that runs out of memory above a number of samples, as a small device would."""

    def __init__(self, bears: int, norm: bool = False) -> None:
        super().__init__()
        self.bears = bears
        self.sizes: list[int] = []
        self.layer = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(3) if norm else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(x))
        y: torch.Tensor = self.layer(self.norm(x))
        if len(x) > self.bears:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return y


def batch_of(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(samples)
    return torch.randn(samples, 3, generator=generator), torch.arange(samples) % 2


def loss_of(model: nn.Module) -> Any:
    return lambda batch: functional.cross_entropy(model(batch[0]), batch[1])


@pytest.mark.parametrize("bears", [1, 5, 7, 23, 63])
def test_a_batch_that_does_not_fit_gives_the_same_gradient_in_parts(
    bears: int, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    small, data = Small(bears), batch_of(64)
    large = Small(64)
    large.load_state_dict(small.state_dict())
    expected = functional.cross_entropy(large(data[0]), data[1])
    expected.backward()  # type: ignore[no-untyped-call]
    accumulator = Accumulator(small, CPU, "gpu-0/0")
    value = accumulator.gradients(loss_of(small), data, 64)
    assert torch.allclose(value, expected.detach()) and not value.requires_grad
    for a, b in zip(small.parameters(), large.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, atol=1e-6)  # type: ignore[arg-type]
    parts = len(micro_batches(64, bears))
    assert accumulator.limit == bears
    assert (
        f"64 samples at a time do not fit into the memory of cpu; the largest number that does is {bears}"
        in caplog.text
    )
    assert f"trained in {parts} parts" in caplog.text
    # From now on nothing is tried that is known not to fit, and nothing is said again.
    small.sizes.clear()
    caplog.clear()
    small.zero_grad()
    accumulator.gradients(loss_of(small), batch_of(50), 50)
    assert small.sizes == micro_batches(50, bears) and not caplog.text


def test_failed_tries_leave_no_trace_in_running_statistics() -> None:
    torch.manual_seed(0)
    tried, data = Small(8, norm=True), batch_of(32)
    known = Small(8, norm=True)
    known.load_state_dict(tried.state_dict())
    Accumulator(tried, CPU, "r").gradients(loss_of(tried), data, 32)
    other = Accumulator(known, CPU, "r")
    other.limit = 8
    other.gradients(loss_of(known), data, 32)
    for (name, a), b in zip(tried.state_dict().items(), known.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_memory_that_shrinks_later_is_met_too(caplog: pytest.LogCaptureFixture) -> None:
    small = Small(64)
    accumulator = Accumulator(small, CPU, "r")
    accumulator.gradients(loss_of(small), batch_of(64), 64)
    small.bears = 20
    small.zero_grad()
    accumulator.gradients(loss_of(small), batch_of(64), 64)
    assert accumulator.limit == 20 and "fitted before" in caplog.text


def test_a_sample_that_does_not_fit_ends_in_a_sentence() -> None:
    small = Small(0)
    with pytest.raises(RunEndedError, match=r"Rank gpu-3/1: not even one sample .* larger device"):
        Accumulator(small, CPU, "gpu-3/1").gradients(loss_of(small), batch_of(4), 4)


def test_a_batch_that_cannot_be_cut_ends_in_a_sentence() -> None:
    small = Small(2)
    data = (torch.zeros(8, 3), torch.zeros(3))
    with pytest.raises(RunEndedError, match=r"cannot be trained in parts: batch\[1\] has the shape \(3,\)"):
        Accumulator(small, CPU, "r").gradients(lambda batch: small(batch[0]).sum(), data, 8)


def test_other_errors_are_the_scripts() -> None:
    with pytest.raises(RuntimeError, match="shapes"):
        Accumulator(Small(8), CPU, "r").gradients(lambda _: torch.zeros(2, 3) @ torch.zeros(2, 3), batch_of(4), 4)
