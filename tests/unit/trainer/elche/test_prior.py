"""What devices are taken to be worth before anything is measured."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdl_trainer.elche.prior import GIB, LARGEST_RATIO, PEAKS, Hardware, peak, relative_speeds


def gpu(vendor: str, arch: str, gibibytes: float) -> Hardware:
    return Hardware(vendor, arch, int(gibibytes * GIB), 8000)


def cpu(millicores: int, arch: str = "x86_64") -> Hardware:
    return Hardware("cpu", arch, 64 * GIB, millicores)


A100, A30, H100, H200 = (
    gpu("nvidia", "sm_80", 79.2),
    gpu("nvidia", "sm_80", 24),
    gpu("nvidia", "sm_90", 79.6),
    gpu("nvidia", "sm_90", 139.8),
)
T4, GTX_1060 = gpu("nvidia", "sm_75", 15.8), gpu("nvidia", "sm_61", 5.9)
MI210, MI300X = gpu("amd", "gfx90a", 64), gpu("amd", "gfx942", 192)

DEVICES = st.one_of(
    st.builds(
        lambda kind, memory: gpu(*kind, memory), st.sampled_from(sorted(PEAKS)), st.floats(0.5, 300, allow_nan=False)
    ),
    st.builds(cpu, st.integers(1, 128_000)),
)


@pytest.mark.parametrize(
    ("slow", "fast", "ratio"),
    [
        (A100, H100, 1.78),
        (T4, A100, 2.19),
        (GTX_1060, H100, LARGEST_RATIO),
        (MI210, A100, 1.31),  # of two vendors
        (A100, MI300X, 2.05),
        (A30, A100, 1.29),  # one architecture, a smaller chip
        (cpu(1000), cpu(4000), 2.0),
        (cpu(500), cpu(1000, "aarch64"), 1.41),
        (cpu(64_000), A100, LARGEST_RATIO),
    ],
)
def test_faster_devices_are_told_from_slower_ones_of_any_vendor(slow: Hardware, fast: Hardware, ratio: float) -> None:
    assert relative_speeds([fast, slow, fast]) == pytest.approx([ratio, 1.0, ratio], abs=0.02)


@pytest.mark.parametrize(
    "devices",
    [
        [],
        [H100],
        [H100, H200],  # more memory, the same chip
        [gpu("amd", "gfx942", 192), H100],  # within a quarter of each other
        [cpu(2000), cpu(3000)],
        [A100, None],
        [A100, gpu("nvidia", "sm_999", 80)],
        [A100, gpu("amd", "sm_80", 80)],
        [A100, gpu("nvidia", "sm_90", 0)],
        [cpu(0), cpu(4000)],
    ],
)
def test_there_is_no_prior_of_devices_that_are_alike_or_unknown(devices: list[Hardware | None]) -> None:
    assert relative_speeds(devices) == []


def test_a_slice_of_a_device_counts_for_its_part_and_never_for_less_than_an_eighth() -> None:
    assert peak(gpu("amd", "gfx942", 24)) == pytest.approx(peak(MI300X) / 8)
    assert peak(gpu("nvidia", "sm_90", 1)) == pytest.approx(989.0 / 8)


def test_a_limit_on_the_difference_of_quotas_limits_the_prior() -> None:
    assert relative_speeds([cpu(1000), cpu(9000)], 1.5) == [1.0, 1.5]
    assert relative_speeds([cpu(1000), cpu(9000)], 1.0) == []


@given(st.lists(DEVICES, min_size=1, max_size=8), st.randoms())
def test_a_prior_is_bounded_and_belongs_to_the_devices_and_not_to_their_order(
    devices: list[Hardware], random: object
) -> None:
    speeds = relative_speeds(devices)
    assert not speeds or (min(speeds) == 1.0 and max(speeds) <= LARGEST_RATIO)
    shuffled = sorted(range(len(devices)), key=lambda _: random.random())  # type: ignore[attr-defined]
    assert relative_speeds([devices[i] for i in shuffled]) == ([speeds[i] for i in shuffled] if speeds else [])
    for a, b in itertools.pairwise(devices):
        if speeds and peak(a) > peak(b):
            assert speeds[devices.index(a)] >= speeds[devices.index(b)]
