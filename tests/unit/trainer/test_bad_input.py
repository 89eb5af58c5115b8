"""What a script does wrong while it trains ends in one sentence that names the rank, what is wrong, and what to do."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from fdl_api.exitcodes import PodExit
from fdl_api.reasons import Ended
from fdl_api.runconfig import CohortConfig
from fdl_trainer.ending import RunEndedError
from fdl_trainer.job import ranks_wanted
from fdl_trainer.session import Session

Harm = Callable[[Session, int], None]


@pytest.fixture
def session() -> Iterator[Session]:
    made = Session(None, None)
    yield made
    made.close()


def train(session: Session, harm: Harm) -> None:
    """Two passes over 200 samples; before each batch the script does harm."""
    torch.manual_seed(0)
    session.setup(
        model=lambda: nn.Linear(4, 2),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        dataset=(torch.randn(200, 4), torch.randint(0, 2, (200,))),
        batch_size=4,
        epochs=2,
    )
    for number, _ in enumerate(session):
        harm(session, number)

        def loss(part: Any) -> torch.Tensor:
            return functional.cross_entropy(session.model(part[0]), part[1])

        session.step(loss)


def adds_a_parameter(session: Session, number: int) -> None:
    if number == 5:
        session.model.register_parameter("late", nn.Parameter(torch.zeros(3)))


def makes_it_nan(session: Session, number: int) -> None:
    with torch.no_grad():
        for parameter in session.model.parameters():
            parameter.fill_(float("nan"))


@pytest.mark.parametrize(
    ("harm", "code", "reason", "sentence"),
    [
        (
            adds_a_parameter,
            PodExit.USER_CODE,
            Ended.SCRIPT_RAISED,
            "Rank solo/0: The model's late changed after session.setup (added or removed): the other ranks do not know "
            "it. Build the whole model in the model factory.",
        ),
        (
            makes_it_nan,
            PodExit.DIVERGED,
            Ended.DIVERGED,
            "The model of rank solo/0 was not finite in 3 windows in a row (the last is 1): lower the learning rate, "
            "clip gradients (clip_norm of session.step), or look for bad samples in what this rank reads.",
        ),
    ],
    ids=["a late parameter", "NaN"],
)
def test_harm_done_while_training_ends_in_a_sentence(
    session: Session, harm: Harm, code: PodExit, reason: Ended, sentence: str
) -> None:
    with pytest.raises(RunEndedError) as ended:
        train(session, harm)
    assert (ended.value.code, ended.value.reason, ended.value.message) == (code, reason, sentence)
    assert ended.value.permanent


def test_the_ranks_that_a_dataset_must_do_for_are_those_that_the_user_wants() -> None:
    cohorts = [
        CohortConfig(name="gpu", vendor="nvidia", min_replicas=1, max_replicas=9, replicas=2, devices_per_replica=4),
        CohortConfig(name="cpu", vendor="cpu", min_replicas=3, max_replicas=9, devices_per_replica=1),
    ]
    assert ranks_wanted(cohorts) == 2 * 4 + 3
