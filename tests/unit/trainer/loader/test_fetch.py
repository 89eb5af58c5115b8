from typing import Any

import pytest
import torch

from fdl_trainer.loader.fetch import DataError, Fetcher, misfits


class Listed:
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        item = self.items[index]
        if isinstance(item, Exception):
            raise item
        return item


class AtOnce(Listed):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        if len(indices) > 1 and self.items[0] == "at once":
            raise ValueError("only one at a time")
        return [self[index] for index in indices]


@pytest.mark.parametrize("at", range(5))
def test_the_sample_of_another_shape_is_found_wherever_it_is(at: int) -> None:
    items: list[Any] = [torch.zeros(3) for _ in range(5)]
    items[at] = torch.zeros(4)
    with pytest.raises(
        DataError, match=rf"Rank cpu-1/0: the collate function of session.setup failed on sample {at}: "
    ):
        Fetcher(Listed(items), None, rank="cpu-1/0")(range(5))
    fetched = Fetcher(Listed(items), None, skip=True)(range(5))
    assert fetched.data.shape == (4, 3)
    assert [index for index, _ in fetched.skipped] == [at] and at not in fetched.indices


def test_a_sample_on_which_collate_itself_raises_is_found() -> None:
    def collate(samples: list[int]) -> int:
        return sum(60 // sample for sample in samples)

    assert misfits(collate, [1, 0, 2, 0]) == [1, 3]
    fetched = Fetcher(Listed([1, 0, 2, 0]), collate, skip=True)([0, 1, 2, 3])
    assert (fetched.data, fetched.indices) == (90, [0, 2])
    assert fetched.skipped == tuple((i, "ZeroDivisionError: integer division or modulo by zero") for i in (1, 3))


def test_a_collate_that_fails_on_everything_is_never_skipped_over() -> None:
    def collate(samples: list[Any]) -> Any:
        if len(samples) > 2:
            raise ValueError("a bug")
        return samples

    with pytest.raises(DataError, match=r"failed on samples \[0, 1, 2\]: ValueError: a bug"):
        Fetcher(Listed([1, 2, 3]), collate, skip=True)([0, 1, 2])


def test_samples_read_at_once_are_read_one_by_one_to_find_the_bad_one() -> None:
    items = [torch.zeros(1), OSError("sector 1 is gone"), torch.zeros(1)]
    with pytest.raises(DataError, match=r"sample 1 could not be read .*sector 1 is gone"):
        Fetcher(AtOnce(items), None)([0, 1, 2])
    assert Fetcher(AtOnce(items), None, skip=True)([0, 1, 2]).indices == [0, 2]
    with pytest.raises(DataError, match=r"__getitems__ failed on samples .* each of which can be read alone"):
        Fetcher(AtOnce(["at once", "b"]), None, skip=True)([0, 1])


def test_memory_that_runs_out_is_no_fault_of_the_sample() -> None:
    with pytest.raises(MemoryError):
        Fetcher(Listed([MemoryError()]), None, skip=True)([0])
