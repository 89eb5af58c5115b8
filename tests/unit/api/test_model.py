"""What all resource models share."""

import pytest
from pydantic import ValidationError

from fdl_api.model import first_problem
from fdl_api.spec_policy import ElcheSpec


def test_the_first_problem_of_a_model_is_told_with_the_path_to_its_field() -> None:
    with pytest.raises(ValidationError) as refused:
        ElcheSpec.model_validate({"partitionRatios": [0.5, 7.0], "nosuch": 1})
    said = "Input should be less than or equal to 1"
    assert first_problem(refused.value) == f"partitionRatios.1: {said}"
    assert first_problem(refused.value, "spec", "elche") == f"spec.elche.partitionRatios.1: {said}"
