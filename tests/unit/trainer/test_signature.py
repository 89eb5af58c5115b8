import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.utils.data import Dataset

from fdl_trainer import randomness, treefile
from fdl_trainer.signature import dataset_signature, first_difference, model_signature


def model(width: int = 3, dtype: torch.dtype = torch.float32, extra: bool = False) -> torch.nn.Module:
    layers: list[torch.nn.Module] = [torch.nn.Linear(4, width), torch.nn.BatchNorm1d(width)]
    return torch.nn.Sequential(*layers, *([torch.nn.Linear(width, 1)] if extra else [])).to(dtype)


def test_the_signature_is_of_shapes_not_of_values_nor_of_devices() -> None:
    torch.manual_seed(1)
    digest, specs = model_signature(model())
    torch.manual_seed(2)
    assert model_signature(model())[0] == digest
    assert model_signature(model().to("meta"))[0] == digest
    assert len(digest) == 64
    assert [spec.name for spec in specs] == [
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
    ]
    assert (specs[0].dtype, specs[0].shape) == ("float32", [3, 4])


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (model(width=5), "Entry 0 is 0.weight (float32, 3x4) on a and 0.weight (float32, 5x4) on b."),
        (model(dtype=torch.bfloat16), "Entry 0 is 0.weight (float32, 3x4) on a and 0.weight (bfloat16, 3x4) on b."),
        (model(extra=True), "Entry 4 is 1.running_mean (float32, 3) on a and 2.weight (float32, 1x3) on b."),
        (torch.nn.Sequential(torch.nn.Linear(4, 3)), "Entry 2, 1.weight (float32, 3), exists only on a."),
    ],
)
def test_the_first_difference_is_named(other: torch.nn.Module, sentence: str) -> None:
    digest, ours = model_signature(model())
    other_digest, theirs = model_signature(other)
    assert digest != other_digest
    assert first_difference(ours, theirs, "on a", "on b") == sentence


def test_the_same_model_has_no_difference() -> None:
    assert first_difference(model_signature(model())[1], model_signature(model())[1]) == ""


def test_tied_weights_count_once() -> None:
    tied = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    assert [spec.name for spec in model_signature(tied)[1]] == ["0.weight", "0.bias", "1.bias"]


@pytest.fixture
def sharded() -> Iterator[torch.Tensor]:
    """A tensor as FSDP2 makes them, in a group of one."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        yield distribute_tensor(torch.ones(4, 2), init_device_mesh("cpu", (1,)), [Shard(0)])
    finally:
        torch.distributed.destroy_process_group()


def test_a_sharded_model_is_refused_with_the_parameters_name(sharded: torch.Tensor) -> None:
    model = torch.nn.Linear(2, 4)
    model.weight = torch.nn.Parameter(sharded)
    with pytest.raises(ValueError, match=r"the model's weight is a part of a sharded .*fully_shard.*argument shard"):
        model_signature(model)


def test_a_sharded_optimizer_state_is_not_saved_as_if_it_were_whole(sharded: torch.Tensor) -> None:
    with pytest.raises(TypeError, match=r"state\.state\.0\.exp_avg is a part of a sharded tensor"):
        treefile.pack({"state": {0: {"exp_avg": sharded}}})


def test_a_lazy_module_is_refused_until_it_has_shapes() -> None:
    lazy = torch.nn.Sequential(torch.nn.LazyLinear(3))
    with pytest.raises(ValueError, match=r"0\.weight has no shape yet"):
        model_signature(lazy)
    lazy(torch.zeros(2, 4))
    model_signature(lazy)


class Samples(Dataset[Any]):
    def __init__(self, make: Any, length: int = 100) -> None:
        self.make, self.length = make, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def sign(make: Any, length: int = 100, batch_size: int = 10, data_epochs: int = 2, seed: int = 0) -> str:
    return dataset_signature(Samples(make, length), batch_size, data_epochs, seed)


def plain(index: int) -> Any:
    return torch.full((2, 2), index / 255), index


DIFFERENT = {
    "length": sign(plain, length=101),
    "batch size": sign(plain, batch_size=11),
    "passes": sign(plain, data_epochs=3),
    "seed": sign(plain, seed=1),
    "label": sign(lambda i: (torch.full((2, 2), i / 255), i + (i == 99))),
    "values": sign(lambda i: (torch.full((2, 2), i / 250), i)),
    "shape": sign(lambda i: (torch.full((2, 3), i / 255), i)),
    "dtype": sign(lambda i: (torch.full((2, 2), i / 255).double(), i)),
    "structure": sign(lambda i: {"x": torch.full((2, 2), i / 255), "y": i}),
    "order": sign(lambda i: (i, torch.full((2, 2), i / 255))),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_another_dataset_has_another_signature(what: str) -> None:
    assert DIFFERENT[what] != sign(plain)
    assert len(set(DIFFERENT.values())) == len(DIFFERENT)


def test_the_last_bits_of_floating_samples_do_not_count() -> None:
    assert sign(lambda i: (torch.full((2, 2), i / 255 * (1 + 1e-7)), i)) == sign(plain)


def test_random_augmentation_is_held_still_and_leaves_no_trace() -> None:
    def augmented(index: int) -> Any:
        noise = [random.random(), float(np.random.rand()), float(torch.rand(()))]
        return torch.tensor(noise), int(torch.randint(1000, ())), "text", b"bytes", np.int64(index), np.ones(2), 0.5

    random.seed()
    before = randomness.capture()
    first = sign(augmented)
    assert randomness.capture() == before
    torch.rand(5)
    assert sign(augmented) == first


def test_tensors_and_their_dataset_are_the_same_data() -> None:
    pair = (torch.arange(12.0).reshape(6, 2), torch.arange(6))
    assert dataset_signature(pair, 2, 1, 0) == dataset_signature(torch.utils.data.TensorDataset(*pair), 2, 1, 0)


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        sign(plain, length=0)


def test_samples_that_are_left_out_are_left_out_here_too() -> None:
    def some(index: int) -> Any:
        if index == 0:
            raise ValueError("a broken file")
        return plain(index)

    def none(index: int) -> Any:
        raise ValueError("a broken file")

    with pytest.raises(ValueError, match="a broken file"):
        dataset_signature(Samples(some), 10, 2, 0)
    digest = dataset_signature(Samples(some), 10, 2, 0, skips=True)
    assert digest == dataset_signature(Samples(some), 10, 2, 0, skips=True) != sign(plain)
    with pytest.raises(ValueError, match="a broken file"):
        dataset_signature(Samples(none), 10, 2, 0, skips=True)
