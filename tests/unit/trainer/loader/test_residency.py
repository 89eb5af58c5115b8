import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdl_api import wire
from fdl_trainer.loader.residency import MAX_AHEAD, MAX_NOTE, MIN_AHEAD, Facts, ahead, decide, fallback, impossible

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
    assert decision.note == "streamed: memory ran out while 3.0 GiB were loaded"


@pytest.mark.parametrize(
    ("facts", "note"),
    [
        (Facts("cuda:0", 6 * GIB, 8 * GIB), "resident: 6.0 GiB; up to 6.0 GiB of 8.0 GiB free"),
        (Facts("cuda:0", 7 * GIB, 8 * GIB), "streamed: 7.0 GiB are more than 6.0 GiB of 8.0 GiB free"),
        (Facts("cpu", 1, 8 * GIB, placed=True), "resident: on cpu already"),
        (Facts("cpu", 1, 8 * GIB, wish=False), "streamed: resident=False"),
        (Facts("cpu", None, GIB, tensors=False), "streamed: samples may differ from pass to pass"),
        (Facts("cpu", None, GIB, tensors=False, shards=7), "streamed: 7 shards"),
    ],
)
def test_a_note_says_it_in_a_few_words(facts: Facts, note: str) -> None:
    assert decide(facts).note == note


def test_a_note_is_never_longer_than_its_field() -> None:
    assert len(impossible("so " * 100).note) == MAX_NOTE
    assert wire.RankHello.model_fields["data"].metadata == wire.RankWindow.model_fields["data"].metadata
    assert [limit.max_length for limit in wire.RankHello.model_fields["data"].metadata] == [MAX_NOTE]


@given(workers=st.integers(0, 200), batch=st.integers(0, 1 << 40), free=st.integers(0, 1 << 44))
def test_reading_ahead_feeds_the_workers_within_a_quarter_of_memory(workers: int, batch: int, free: int) -> None:
    depth = ahead(workers, batch, free)
    assert MIN_AHEAD <= depth <= min(MAX_AHEAD, max(2, 2 * workers))
    assert depth == MIN_AHEAD or depth * batch <= free / 4
