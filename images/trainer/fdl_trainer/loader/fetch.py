"""Samples read from the script's dataset and made into a batch; a bad one is named, or left out and counted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import default_collate

from fdl_trainer.datasets import AbsentSampleError, sample_of
from fdl_trainer.loader.memory import is_out_of_memory

REMEDY = 'or leave such samples out with session.setup(on_sample_error="skip")'
_SHOWN = 8
"""Indices that a sentence names."""


class DataError(Exception):
    """The dataset, or the collate function, could not deliver a batch; the message names rank, samples and remedy."""


@dataclass(frozen=True)
class Fetched:
    """One batch in the host's memory.

    Args:
        data: what the collate function made of the samples; None when all were left out.
        indices: the samples in it.
        skipped: the samples left out, each with what it raised.
    """

    data: Any
    indices: list[int]
    skipped: tuple[tuple[int, str], ...] = ()


class Fetcher:
    """Makes batches of a dataset's samples; used in a thread or in worker processes.

    Args:
        dataset: has ``__getitem__`` (``__getitems__`` is used if it is there), or is tensors.
        collate: makes a batch of a list of samples; torch's default when None.
        rank: name of this rank, for sentences.
        skip: leave a sample out that cannot be read or collated, instead of raising.
    """

    def __init__(
        self, dataset: Any, collate: Callable[[list[Any]], Any] | None, *, rank: str = "solo", skip: bool = False
    ) -> None:
        self.dataset = dataset
        self.rank = rank
        self._collate = collate or default_collate
        self._skip = skip

    def __call__(self, indices: Sequence[int]) -> Fetched:
        """The batch of these samples.

        Raises:
            DataError: a sample or the batch is bad, and is not to be left out; the cause is chained.
        """
        kept, samples, skipped = self._read(indices)
        if not samples:
            return Fetched(None, [], tuple(skipped))
        try:
            data = self._collate(samples)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            bad = set(misfits(self._collate, samples))
            data = self._without(samples, kept, bad, error)
            skipped += [(index, _words(error)) for i, index in enumerate(kept) if i in bad]
            kept = [index for i, index in enumerate(kept) if i not in bad]
        return Fetched(data, kept, tuple(skipped)) if kept else Fetched(None, [], tuple(skipped))

    def _read(self, indices: Sequence[int]) -> tuple[list[int], list[Any], list[tuple[int, str]]]:
        if hasattr(self.dataset, "__getitems__"):
            try:
                return list(indices), list(self.dataset.__getitems__(list(indices))), []
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                at_once = error
            one_by_one = self._one_by_one(indices)
            if one_by_one[2]:
                return one_by_one
            raise DataError(
                f"Rank {self.rank}: dataset.__getitems__ failed on samples {_listed(indices)}, each of which can be "
                f"read alone: {_words(at_once)}. Mend the dataset that is given to session.setup."
            ) from at_once
        return self._one_by_one(indices)

    def _one_by_one(self, indices: Sequence[int]) -> tuple[list[int], list[Any], list[tuple[int, str]]]:
        kept: list[int] = []
        samples: list[Any] = []
        skipped: list[tuple[int, str]] = []
        for index in indices:
            try:
                samples.append(sample_of(self.dataset, index))
                kept.append(index)
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                if not self._skip and not isinstance(error, AbsentSampleError):
                    raise DataError(
                        f"Rank {self.rank}: sample {index} could not be read from the dataset of session.setup: "
                        f"{_words(error)}. Mend the sample or dataset.__getitem__, {REMEDY}."
                    ) from error
                skipped.append((index, _words(error)))
        return kept, samples, skipped

    def _without(self, samples: list[Any], indices: list[int], bad: set[int], error: Exception) -> Any:
        """The batch without the samples that made collating fail."""
        named = [indices[i] for i in sorted(bad)] or indices
        rest = [sample for i, sample in enumerate(samples) if i not in bad]
        if self._skip and bad:
            try:
                return self._collate(rest) if rest else None
            except Exception as other:
                named, error = indices, other
        which = f"sample {named[0]}" if len(named) == 1 else f"samples {_listed(named)}"
        raise DataError(
            f"Rank {self.rank}: the collate function of session.setup failed on {which}: {_words(error)}. Mend the "
            f"sample, the dataset or collate, {REMEDY}."
        ) from error


def misfits(collate: Callable[[list[Any]], Any], samples: Sequence[Any]) -> list[int]:
    """Places of the samples that make collating fail: alone, or beside a sample that fits most others.

    Empty if none can be blamed: each collates alone and with the others in pairs.
    """
    alone = [i for i, sample in enumerate(samples) if not _works(collate, [sample])]
    rest = [i for i in range(len(samples)) if i not in alone]
    if not rest or _works(collate, [samples[i] for i in rest]):
        return alone
    references = {rest[0], rest[len(rest) // 2], rest[-1]}
    blamed = [
        [i for i in rest if i != reference and not _works(collate, [samples[reference], samples[i]])]
        for reference in sorted(references)
    ]
    return sorted([*alone, *min(blamed, key=len)])


def _works(collate: Callable[[list[Any]], Any], samples: list[Any]) -> bool:
    try:
        collate(samples)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return False
    return True


def _words(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else 'no message'}".rstrip(".")


def _listed(indices: Sequence[int]) -> str:
    more = f" and {len(indices) - _SHOWN} more" if len(indices) > _SHOWN else ""
    return f"{[int(index) for index in indices[:_SHOWN]]}{more}"
