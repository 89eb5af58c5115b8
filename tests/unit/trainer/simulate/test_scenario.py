import pytest

from fdl_trainer.simulate.scenario import Event, Kind, check_events, parse_event, parse_rates


@pytest.mark.parametrize(
    ("text", "ms"),
    [("1:2.3", [23.0, 10.0]), ("1:1:4", [23.0, 23.0, 5.75]), ("2x3:4", [23.0, 23.0, 23.0, 11.5]), ("7", [23.0])],
)
def test_rates_become_milliseconds_a_batch(text: str, ms: list[float]) -> None:
    assert parse_rates(text, 23.0) == pytest.approx(ms)


@pytest.mark.parametrize("text", ["", "1:", "1:x", "1:0", "1x0", "-1", "1x20000"])
def test_what_is_no_list_of_rates_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"rate|ranks"):
        parse_rates(text, 20.0)


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ("death:3@w40", Event(Kind.DEATH, window=40, rank=3)),
        ("leave:0@12.5s", Event(Kind.LEAVE, second=12.5, rank=0)),
        ("join:2.3@w7", Event(Kind.JOIN, window=7, value=2.3)),
        ("stall:1:30@w9", Event(Kind.STALL, window=9, rank=1, value=30.0)),
        ("speed:1:0.5@w9", Event(Kind.SPEED, window=9, rank=1, value=0.5)),
        ("swap@w9", Event(Kind.SWAP, window=9)),
    ],
)
def test_events_are_read(text: str, event: Event) -> None:
    assert parse_event(text) == event


@pytest.mark.parametrize(
    "text",
    ["death@w1", "death:1.5@w1", "death:1:2@w1", "swap:1@w1", "swap", "swap@1", "join:0@w1", "x@w1", "join:.@w1"],
)
def test_what_is_no_event_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"event|figure"):
        parse_event(text)


@pytest.mark.parametrize(
    "events",
    [
        ["death:1@w1", "leave:0@3s", "swap@w4", "join:2@w5"],
        ["join:1@w5", "death:2@w6"],
        ["death:2@w6", "join:1@w5"],
        ["join:1@2s", "join:1@3s", "stall:3:1@4s"],
        ["join:1@w5", "death:2@1s"],  # nobody knows which of the two is earlier
    ],
)
def test_events_of_ranks_that_are_there_by_then_are_taken(events: list[str]) -> None:
    check_events(2, [parse_event(event) for event in events])


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        (["death:2@w1"], "the event 'death' in window 1 is of rank 2, and there are only 2 from the start by then"),
        (["join:1@w6", "leave:2@w6"], "rank 2, and there are only 2 from the start by then"),
        (
            ["join:1@2s", "speed:3:2@4s"],
            "in second 4 is of rank 3, and there are only 2 from the start and 1 that joined",
        ),
        (["stall:9:1@2.5s"], "in second 2.5 is of rank 9"),
    ],
)
def test_events_of_ranks_that_never_exist_are_refused(events: list[str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        check_events(2, [parse_event(event) for event in events])
