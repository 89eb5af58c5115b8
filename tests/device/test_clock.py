"""Times by events, and no wait for the device while batches run."""

import time

import torch

from fdl_trainer.clocks import DeviceClock, clock_here
from fdl_trainer.ledger import Span
from fdl_trainer.work import WindowWork


def busy(size: int, times: int) -> None:
    matrix = torch.ones(size, size, device="cuda")
    for _ in range(times):
        matrix = matrix @ matrix


def test_a_batch_is_timed_by_the_device_and_the_host_never_waits_for_it() -> None:
    busy(4096, 2)
    torch.cuda.synchronize()
    work = WindowWork()
    assert isinstance(work.clock, DeviceClock) and isinstance(clock_here(), DeviceClock)
    loss = torch.ones((), device="cuda")
    started = time.perf_counter()
    torch.cuda.set_sync_debug_mode("error")  # any wait for the device raises
    try:
        for number in range(20):
            work.asks()
            work.given()
            busy(8192, 3)
            work.report(loss, 8)
            work.finished(Span(8 * number, 8 * number + 8))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    enqueued = (time.perf_counter() - started) * 1000.0
    compute = work.compute_ms
    wall = (time.perf_counter() - started) * 1000.0
    assert enqueued < compute / 2, "the host was done while the device was still at work"
    assert 0.8 * wall < compute <= 1.05 * wall, (compute, wall)
    assert work.loss_sum() == 160.0
