"""Two tiers, with Gloo in the place of NCCL inside the domains: the same sum as one flat group, and a death mid-way."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from fdl_trainer.groups import (
    CollectiveFailedError,
    Fabric,
    Group,
    InterruptedCollectiveError,
    LocalGroup,
    Place,
    Reaper,
)
from fdl_trainer.groups import form as form_group
from fdl_trainer.groups.form import tiers
from fdl_trainer.groups.gloo import new_gloo
from fdl_trainer.groups.tiered import TieredGroup
from fdl_trainer.store import EpochStore
from tests.unit.trainer.test_runtime_groups import LIMIT, Shared, all_of, never

COHORTS = ["left", "right", "left", "right", "left"]


def each(call: Callable[[int], Any], ranks: int) -> list[Any]:
    return [future.result(LIMIT) for future in all_of([lambda rank=rank: call(rank) for rank in range(ranks)])]  # type: ignore[misc]


def tiered(cohorts: list[str], epoch: int = 1) -> list[TieredGroup]:
    places, shared, reaper = tiers(cohorts), Shared(), Reaper()

    def gloo(name: str, rank: int, size: int) -> Group:
        return new_gloo(EpochStore(shared, epoch, name), rank, size, "127.0.0.1", reaper)

    def one(rank: int) -> TieredGroup:
        domain, inside = places[rank]
        size = sum(1 for other, _ in places if other == domain)
        inner = gloo(f"inner{domain}/", inside, size) if size > 1 else LocalGroup()
        word = gloo(f"word{domain}/", inside, size) if size > 1 else LocalGroup()
        outer = gloo("outer/", domain, max(place for place, _ in places) + 1) if inside == 0 else None
        return TieredGroup(rank, inner, outer, word, places)

    return each(one, len(cohorts))


def inputs(ranks: int) -> list[torch.Tensor]:
    return [torch.randn(50_021, generator=torch.Generator().manual_seed(rank)) for rank in range(ranks)]


@pytest.mark.parametrize("cohorts", [COHORTS, ["left", "right"], ["left", "left", "right"]])
def test_two_tiers_sum_what_one_flat_group_sums(cohorts: list[str]) -> None:
    ranks, shared, reaper = len(cohorts), Shared(), Reaper()
    flat = each(
        lambda rank: form_group(shared, Place(1, rank, ["x"] * ranks, "127.0.0.1"), Fabric(), reaper, never), ranks
    )
    plain, stacked = inputs(ranks), inputs(ranks)
    each(lambda rank: flat[rank].all_reduce(plain[rank], never), ranks)
    groups = tiered(cohorts)
    each(lambda rank: groups[rank].all_reduce(stacked[rank], never), ranks)
    exact = torch.stack([part.double() for part in inputs(ranks)]).sum(0)
    error = (stacked[0].double() - exact).abs().max()
    assert error <= ranks * torch.finfo(torch.float32).eps * exact.abs().max().clamp(min=4.0)
    assert torch.allclose(stacked[0], plain[0], rtol=0.0, atol=float(4 * ranks * torch.finfo(torch.float32).eps * 4))
    assert all(torch.equal(stacked[0], other) for other in stacked[1:]), "all ranks hold the same bits"
    for group in [*flat, *groups]:
        group.close()


@pytest.mark.parametrize("root", range(5))
def test_any_rank_can_give(root: int) -> None:
    groups = tiered(COHORTS)
    given = [torch.full((7,), float(rank)) for rank in range(5)]
    each(lambda rank: groups[rank].broadcast(given[rank], root, never), 5)
    assert all(tensor.tolist() == [float(root)] * 7 for tensor in given)
    for group in groups:
        group.close()


def test_a_leader_that_dies_mid_way_frees_all_nobody_takes_half_a_sum_and_the_retry_is_whole() -> None:
    """Rank 1 leads the right-hand domain. It sums inside and dies before the sum between the domains."""
    groups = tiered(COHORTS)
    buffers = inputs(5)
    leader = groups[1]

    def dies(rank: int) -> Exception | None:
        try:
            if rank == 1:
                leader._inner.all_reduce(buffers[1], never)
                leader.close()  # to its peers, a death
            else:
                groups[rank].all_reduce(buffers[rank], never)
        except (CollectiveFailedError, InterruptedCollectiveError) as error:
            return error
        return None

    with ThreadPoolExecutor(5) as pool:
        ends = [future.result(LIMIT) for future in [pool.submit(dies, rank) for rank in range(5)]]
    assert ends[1] is None and all(isinstance(ends[rank], CollectiveFailedError) for rank in (0, 2, 3, 4)), ends
    survivors = tiered([COHORTS[rank] for rank in (0, 2, 3, 4)], epoch=2)
    again = [inputs(5)[rank] for rank in (0, 2, 3, 4)]  # packed anew: what was half summed is no input
    each(lambda rank: survivors[rank].all_reduce(again[rank], never), 4)
    exact = torch.stack([inputs(5)[rank].double() for rank in (0, 2, 3, 4)]).sum(0)
    assert torch.allclose(again[0].double(), exact, rtol=0.0, atol=1e-5)
    assert all(torch.equal(again[0], other) for other in again[1:])
    for group in survivors:
        group.close()


def test_who_waits_for_the_leaders_word_can_leave() -> None:
    groups = tiered(["left", "left", "right"])
    buffers = inputs(3)

    def start(rank: int) -> Exception | None:
        try:
            groups[rank].all_reduce(buffers[rank], never if rank == 0 else lambda: True)
        except (CollectiveFailedError, InterruptedCollectiveError) as error:
            return error
        return None

    # The right-hand domain never comes; the left leader waits for it, and its peer for the leader's word.
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(start, 0), pool.submit(start, 1)]
        assert isinstance(waiting[1].result(LIMIT), InterruptedCollectiveError)
        groups[2].close()
        assert isinstance(waiting[0].result(LIMIT), CollectiveFailedError)
    for group in groups:
        group.close()
