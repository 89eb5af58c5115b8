"""Which batch sizes are told, and what is advised then."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdl_api.batches import too_large


@pytest.mark.parametrize(
    ("batch_size", "samples", "ranks", "sentence"),
    [
        (64, 64, 1, ""),
        (16, 64, 4, ""),
        (
            65,
            64,
            1,
            "rank 0: batch_size of session.setup is 65 and the dataset has 64 samples: each batch is a whole pass over "
            "it; lower batch_size to at most 64 in a new run, or use more data.",
        ),
        (
            100,
            64,
            4,
            "rank 0: batch_size of session.setup is 100 and the dataset has 64 samples: a pass over it is 1 batch for "
            "4 ranks, of which some do less than a full one, or nothing; lower batch_size to at most 16 in a new run, "
            "or use more data.",
        ),
    ],
)
def test_the_sentence_names_rank_field_and_remedy(batch_size: int, samples: int, ranks: int, sentence: str) -> None:
    assert too_large("rank 0", batch_size, samples, ranks) == sentence


@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 20))
def test_who_follows_the_advice_hears_no_more_of_it(batch_size: int, samples: int, ranks: int) -> None:
    sentence = too_large("rank 0", batch_size, samples, ranks)
    assert bool(sentence) == (ranks * batch_size > samples)
    if sentence and samples >= ranks:
        (advised,) = re.findall(r"at most (\d+)", sentence)
        assert too_large("rank 0", int(advised), samples, ranks) == ""
        assert too_large("rank 0", int(advised) + 1, samples, ranks)
