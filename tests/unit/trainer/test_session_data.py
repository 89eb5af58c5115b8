"""Sessions that train alone in this process: what the data, or a device that is too small, makes of a training."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from fdl_api.exitcodes import PodExit
from fdl_api.reasons import Ended
from fdl_trainer.ending import RunEndedError
from fdl_trainer.session import Session
from fdl_trainer.sharded import ShardedIterable

BAD = 13


class Points(Dataset[Any]):
    def __init__(self, samples: int, bad: int | None = None) -> None:
        self.samples, self.bad = samples, bad

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        if index == self.bad:
            raise OSError("sector 13 is gone")
        return point(index)


def point(index: int) -> tuple[torch.Tensor, int]:
    generator = torch.Generator().manual_seed(index)
    return torch.randn(4, generator=generator), index % 2


class Small(nn.Linear):
    """Runs out of memory above some samples."""

    bears = 1 << 30

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        if len(x) > self.bears:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return y


@pytest.fixture
def train() -> Iterator[Callable[..., tuple[Session, int]]]:
    sessions: list[Session] = []

    def run(dataset: Any, *, bears: int = 1 << 30, step: Any = None, **options: Any) -> tuple[Session, int]:
        session = Session(None, None)
        sessions.append(session)
        settings: dict[str, Any] = {
            "model": lambda: Small(4, 2),
            "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            "batch_size": 8,
            "epochs": 2,
            **options,
        }
        session.setup(dataset=dataset, **settings)
        session.model.bears = bears  # type: ignore[assignment]

        def loss(batch: Any) -> torch.Tensor:
            return functional.cross_entropy(session.model(batch[0]), batch[1])

        trained = 0
        for batch in session:
            session.step(**{"loss": loss} | (step or {}))
            trained += len(batch[0])
        session.finish()
        return session, trained

    yield run
    for session in sessions:
        session.close()


Train = Callable[..., tuple[Session, int]]


def test_steps_on_a_device_that_is_too_small_lead_to_the_same_model(train: Train) -> None:
    large, _ = train(Points(40))
    small, _ = train(Points(40), bears=3)
    for a, b in zip(large.model.parameters(), small.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_sample_is_left_out_and_the_run_completes(train: Train, workers: int) -> None:
    session, trained = train(Points(40, BAD), on_sample_error="skip", workers=workers)
    assert session.complete and trained == 2 * 39 and session.progress == 1.0


def test_a_batch_without_any_good_sample_is_passed_over(train: Train) -> None:
    session, trained = train(Points(40, BAD), on_sample_error="skip", batch_size=1)
    assert session.complete and trained == 2 * 39


def test_a_bad_sample_ends_the_member_by_default(train: Train) -> None:
    with pytest.raises(
        RunEndedError, match=rf"Rank solo/0: sample {BAD} could not be read .*sector 13 is gone"
    ) as ended:
        train(Points(40, BAD))
    assert (ended.value.code, ended.value.reason) == (PodExit.DATA, Ended.SCRIPT_RAISED)


@pytest.mark.parametrize("samples", [1, 2, 7])
def test_a_dataset_smaller_than_a_batch_is_trained_and_said(
    train: Train, samples: int, caplog: pytest.LogCaptureFixture
) -> None:
    session, trained = train(Points(samples))
    assert session.complete and trained == 2 * samples
    assert f"Rank solo/0: batch_size of session.setup is 8 and the dataset has {samples} samples" in caplog.text
    assert f"lower batch_size to at most {samples} in a new run" in caplog.text


def test_parts_can_be_asked_for_and_must_hold_a_sample(train: Train) -> None:
    whole, _ = train(Points(40))
    parts, _ = train(Points(40), step={"micro_batch": 3}, bears=3)
    for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    with pytest.raises(RunEndedError, match=r"micro_batch of session.step is 0"):
        train(Points(40), step={"micro_batch": 0})


def test_a_loss_that_is_computed_already_is_no_loss_for_a_step(train: Train) -> None:
    with pytest.raises(RunEndedError, match=r"session.step was given a Tensor as its loss; give it the function"):
        train(Points(40), step={"loss": torch.tensor(1.0)})


def test_shards_are_trained(train: Train) -> None:
    dataset = ShardedIterable(
        shards=5, records_per_shard=8, open=lambda shard, start: map(point, range(8 * shard + start, 8 * shard + 7))
    )
    session, trained = train(dataset)
    assert session.complete and trained == 2 * 5 * 7


@pytest.mark.parametrize(
    ("dataset", "options", "code", "sentence"),
    [
        (Points(0), {}, PodExit.DATA, "Rank solo/0: the dataset of session.setup cannot be used: the dataset is empty"),
        (iter([1]), {}, PodExit.DATA, "which can only be iterated"),
        ((torch.tensor(1.0),), {}, PodExit.DATA, "a tensor without dimensions"),
        (Points(9), {"batch_size": 0}, PodExit.USER_CODE, "batch_size is 0"),
        (Points(9), {"workers": -1}, PodExit.USER_CODE, "workers=-1"),
        (Points(9), {"on_sample_error": "ignore"}, PodExit.USER_CODE, 'on_sample_error="ignore"'),
        (Points(9), {"bears": 0}, PodExit.USER_CODE, "Rank solo/0: not even one sample"),
    ],
)
def test_what_cannot_be_trained_ends_in_a_sentence(
    train: Train, dataset: Any, options: dict[str, Any], code: PodExit, sentence: str
) -> None:
    with pytest.raises(RunEndedError) as ended:
        train(dataset, **options)
    assert ended.value.code == code and sentence in ended.value.message
