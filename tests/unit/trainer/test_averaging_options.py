"""The numbers that optimizers step with: which they are, and how they are lent and given back."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fdl_trainer.averaging import ModelChangedError
from fdl_trainer.averaging.options import SCHEDULED, Options, decode, digest, encode, give_back

NUMBERS = st.none() | st.floats() | st.integers(-(2**53), 2**53).map(float)


def group_of(optimizer: type[torch.optim.Optimizer], **options: Any) -> dict[str, Any]:
    return optimizer([nn.Parameter(torch.zeros(2))], **options).param_groups[0]


@pytest.mark.parametrize(
    ("optimizer", "names"),
    [
        (torch.optim.SGD, "dampening, lr, momentum, weight_decay"),
        (torch.optim.AdamW, "betas, eps, lr, weight_decay"),
        (torch.optim.RMSprop, "alpha, eps, lr, momentum, weight_decay"),
        (torch.optim.Adadelta, "eps, lr, rho, weight_decay"),
        (torch.optim.NAdam, "betas, eps, lr, momentum_decay, weight_decay"),
    ],
)
def test_every_number_is_an_option_and_no_switch_is(optimizer: type[torch.optim.Optimizer], names: str) -> None:
    """Switches differ between devices and versions of torch (fused, foreach, decoupled_weight_decay)."""
    options = Options.of(group_of(optimizer, lr=0.1))
    assert str(options) == names
    assert {name for name, _ in options.widths} <= set(SCHEDULED), "and torch's own are all a schedule's"


@given(numbers=st.lists(NUMBERS, max_size=6))
def test_numbers_travel_bit_for_bit_and_none_is_no_number(numbers: list[float | None]) -> None:
    back = decode(encode(numbers))
    assert [number is None for number in back] == [number is None for number in numbers]
    assert encode(back) == encode(numbers)


def test_lent_numbers_have_the_form_of_the_own_and_go_back() -> None:
    rate = torch.tensor(0.5)
    group = {"params": [], "lr": rate, "betas": (0.9, None, torch.tensor(3.0)), "weight_decay": 0, "fused": True}
    before = dict(group)
    options = Options.of(group)
    assert options.widths == (("betas", 3), ("lr", 1), ("weight_decay", 1))
    loan = options.lend(group, [0.5, 0.25, 1.5, 0.125, 0.01])
    assert group["betas"] == (0.5, 0.25, 1.5) and isinstance(group["betas"][2], torch.Tensor)
    assert isinstance(group["lr"], torch.Tensor) and group["lr"] == 0.125 and rate == 0.5
    assert group["weight_decay"] == 0.01, "an idle rank's 0 is an integer by chance"
    give_back(group, loan)
    assert group == before and group["lr"] is rate


def test_what_the_step_counts_stays_an_integer_and_is_kept() -> None:
    group: dict[str, Any] = {"params": [], "k": 3, "lr": math.nan, "d": 0.5}
    options = Options.of(group)
    numbers = options.read({"k": 7, "lr": 0.1, "d": 0.25})
    loan = options.lend(group, numbers)
    group["k"] += 1
    give_back(group, loan)
    assert group["k"] == 8 and isinstance(group["k"], int)
    assert math.isnan(group["lr"]) and group["d"] == 0.5


def test_an_option_that_is_missing_on_one_side_stays_the_own() -> None:
    options = Options.of({"lr": 0.1, "initial_lr": 0.3})
    assert options.read({"lr": 0.2}) == [None, 0.2]
    group = {"lr": 0.1}
    options.lend(group, [0.9, 0.2])
    assert group == {"lr": 0.2}


def test_an_option_of_another_length_is_refused_by_name() -> None:
    options = Options.of({"betas": (0.9, 0.99)})
    with pytest.raises(ModelChangedError, match=r"option betas has 3 numbers and had 2 in session\.setup"):
        options.read({"betas": (0.9, 0.99, 0.999)})


def test_a_digest_tells_other_groups_and_options_and_not_other_values() -> None:
    one, other = Options.of({"lr": 0.1}), Options.of({"lr": 0.2})
    assert digest([one]) == digest([other]) and 0 < digest([one]) < 2**48
    assert len({digest(groups) for groups in ([one], [one, one], [Options.of({"lr": (0.1, 0.2)})], [])}) == 4
