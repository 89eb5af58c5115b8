"""A window's books: times by the rank's clock, read once, and the loss on its own device."""

from typing import Any

import pytest
import torch

from fdl_trainer.ledger import Span
from fdl_trainer.tail import Flag, RankTail
from fdl_trainer.work import WindowWork


class Script:
    """A clock whose marks are given, and which counts what was read."""

    def __init__(self) -> None:
        self.now = 0.0
        self.reads = 0

    def mark(self) -> Any:
        return self.now

    def milliseconds(self, since: Any, until: Any) -> float:
        self.reads += 1
        return float(until - since)


def trained(work: WindowWork, clock: Script, waits: list[float], compute: float) -> None:
    for number, wait in enumerate(waits):
        work.asks()
        clock.now += wait
        work.given()
        clock.now += compute
        work.finished(Span(8 * number, 8 * number + 8))
        clock.now += 1000.0  # between two batches nobody counts


def test_waiting_for_data_is_told_from_computing_and_the_first_wait_from_the_others() -> None:
    clock = Script()
    work = WindowWork(clock=clock)
    trained(work, clock, [30.0, 2.0, 4.0], 7.0)
    assert (work.compute_ms, work.wait_ms, work.first_wait_ms) == (21.0, 6.0, 30.0)
    assert work.fill_ms == 27.0
    assert (work.batches, work.samples) == (3, 24)


def test_times_are_read_at_the_end_and_once() -> None:
    clock = Script()
    work = WindowWork(clock=clock)
    trained(work, clock, [1.0] * 20, 5.0)
    assert clock.reads == 0, "reading would wait for the device"
    assert work.compute_ms == 100.0
    reads = clock.reads
    assert work.compute_ms == 100.0 and work.wait_ms == 19.0 and clock.reads == reads


def test_a_long_window_keeps_a_bounded_number_of_marks() -> None:
    clock = Script()
    work = WindowWork(clock=clock)
    trained(work, clock, [2.0] * 5000, 3.0)
    assert len(work._unread) <= 256
    assert (work.compute_ms, work.wait_ms, work.first_wait_ms) == (15000.0, 9998.0, 2.0)


def test_the_hosts_clock_is_used_where_there_is_no_device() -> None:
    work = WindowWork()
    work.asks()
    work.given()
    work.finished(Span(0, 8))
    assert 0.0 <= work.compute_ms < 10_000.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_the_loss_is_a_sum_over_samples_and_never_poisons_the_tail(bad: float) -> None:
    work = WindowWork()
    work.report(torch.tensor(2.0), 8)
    work.report(torch.tensor(3.0), 4)
    assert work.loss_sum() == 28.0
    assert Flag.NO_LOSS not in tail_of(work).flags
    work.report(torch.tensor(bad), 4)
    assert work.loss_sum() is None
    assert (tail_of(work).loss_sum, tail_of(work).flags) == (0.0, Flag.STOP | Flag.NO_LOSS)


def test_a_script_that_reports_no_loss_has_none() -> None:
    work = WindowWork()
    work.asks()
    work.given()
    work.finished(Span(0, 8))
    assert work.loss_sum() is None and Flag.NO_LOSS in tail_of(work).flags


def tail_of(work: WindowWork) -> RankTail:
    return work.tail("a", reduce_ms=0.0, divergence=0.0, formed_epoch=1, flags=Flag.STOP, digest=0)
