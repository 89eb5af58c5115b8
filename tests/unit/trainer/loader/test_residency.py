import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdl_trainer.loader.residency import MAX_AHEAD, MIN_AHEAD, Facts, ahead, decide, fallback

GIB = 1 << 30


@pytest.mark.parametrize(
    ("facts", "resident", "part"),
    [
        (Facts("cuda:0", 6 * GIB, 8 * GIB), True, "6.0 GiB against 6.0 GiB, 75% of the 8.0 GiB free on cuda:0"),
        (Facts("cuda:0", 6 * GIB + 1, 8 * GIB), False, "too large"),
        (Facts("cuda:0", 6 * GIB, 8 * GIB, reserved_bytes=1), False, "less 1 B for training"),
        (Facts("cuda:0", 1, 8 * GIB, wish=False), False, "the script asked for it"),
        (Facts("cpu", 99 * GIB, 1, placed=True), True, "on cpu already"),
        (Facts("cpu", None, GIB, tensors=False), False, "random augmentation"),
        (Facts("cpu", None, GIB, tensors=False, wish=True, obstacle="so it is"), False, "asked otherwise: so it is."),
        (Facts("cpu", GIB, 2 * GIB, tensors=False, wish=True), True, "1.0 GiB"),
        (Facts("cpu", 1, 0, reserved_bytes=GIB), False, "too large"),
        (Facts("cpu", None, GIB, tensors=False, wish=True, shards=7), False, "7 shards: each is read at least once"),
    ],
)
def test_a_dataset_is_resident_if_three_quarters_of_what_is_free_hold_it(
    facts: Facts, resident: bool, part: str
) -> None:
    decision = decide(facts)
    assert decision.resident is resident
    assert part in decision.sentence and decision.sentence.endswith(".")


def test_running_out_at_load_says_so() -> None:
    decision = fallback(3 * GIB, "cuda:1", "CUDA out of memory")
    assert not decision.resident and "cuda:1 ran out of memory while its 3.0 GiB" in decision.sentence


@given(workers=st.integers(0, 200), batch=st.integers(0, 1 << 40), free=st.integers(0, 1 << 44))
def test_reading_ahead_feeds_the_workers_within_a_quarter_of_memory(workers: int, batch: int, free: int) -> None:
    depth = ahead(workers, batch, free)
    assert MIN_AHEAD <= depth <= min(MAX_AHEAD, max(2, 2 * workers))
    assert depth == MIN_AHEAD or depth * batch <= free / 4
