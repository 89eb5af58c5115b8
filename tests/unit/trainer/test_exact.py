import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdl_trainer.exact import ln, mean


@given(st.floats(1e-300, 1e300))
def test_ln_is_the_logarithm(x: float) -> None:
    assert ln(x) == pytest.approx(math.log(x), rel=1e-14, abs=1e-15)


@pytest.mark.parametrize("x", [0.0, -1.0, math.inf, math.nan])
def test_ln_of_what_has_none_is_refused(x: float) -> None:
    with pytest.raises(ValueError, match="positive finite"):
        ln(x)


def test_the_mean_is_rounded_once() -> None:
    assert mean([1e16, 1.0, -1e16]) == 1.0 / 3.0
    assert mean([]) == 0.0
