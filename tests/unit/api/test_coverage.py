"""Coverage is decided by the parts of a token, never by its text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdl_api.coverage import (
    Fit,
    Kernels,
    auto_variant,
    best_fit,
    covered,
    covers,
    fit,
    gfx_token,
    lowest,
    parse,
    sm_token,
    smallest_cover,
)

CU126 = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
CU130 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
ROCM = ("gfx908", "gfx90a", "gfx942", "gfx1030", "gfx1100")


@pytest.mark.parametrize(
    ("code", "device", "expected"),
    [
        ("sm_90", "sm_90", Fit.EXACT),
        ("sm_80", "sm_86", Fit.BINARY),
        ("sm_86", "sm_80", Fit.NONE),
        ("sm_80", "sm_90", Fit.NONE),
        ("sm_75", "sm_80", Fit.NONE),
        ("sm_70", "sm_75", Fit.BINARY),
        ("sm_60", "sm_61", Fit.BINARY),
        ("sm_10", "sm_100", Fit.NONE),
        ("sm_100", "sm_103", Fit.BINARY),
        ("sm_100", "sm_120", Fit.NONE),
        ("sm_120", "sm_121", Fit.BINARY),
        # code for one architecture, or for a family
        ("sm_90a", "sm_90", Fit.EXACT),
        ("sm_100a", "sm_103", Fit.NONE),
        ("sm_100f", "sm_103", Fit.BINARY),
        ("sm_100f", "sm_120", Fit.NONE),
        # Tegra modules and cards do not share machine code
        ("sm_80", "sm_87", Fit.NONE),
        ("sm_87", "sm_89", Fit.NONE),
        ("sm_87", "sm_87", Fit.EXACT),
        ("sm_101", "sm_110", Fit.EXACT),
        ("sm_100", "sm_101", Fit.NONE),
        # PTX runs on anything as new or newer
        ("compute_80", "sm_90", Fit.PTX),
        ("compute_80", "sm_87", Fit.PTX),
        ("compute_90", "sm_80", Fit.NONE),
        ("compute_90a", "sm_90", Fit.PTX),
        ("compute_90a", "sm_100", Fit.NONE),
        ("compute_100f", "sm_103", Fit.PTX),
        ("compute_100f", "sm_120", Fit.NONE),
        # AMD runs only its own
        ("gfx90a", "gfx90a", Fit.EXACT),
        ("gfx90a", "gfx90a:sramecc+:xnack-", Fit.EXACT),
        ("gfx908", "gfx90a", Fit.NONE),
        ("gfx90", "gfx90a", Fit.NONE),
        ("gfx110", "gfx1100", Fit.NONE),
        ("gfx1100", "gfx1101", Fit.NONE),
        # never across vendors, never for what is no token
        ("sm_90", "gfx900", Fit.NONE),
        ("gfx942", "sm_94", Fit.NONE),
        ("8.6", "sm_86", Fit.NONE),
        ("", "sm_86", Fit.NONE),
        ("sm_86", "", Fit.NONE),
        ("gfx9-generic", "gfx900", Fit.NONE),
    ],
)
def test_fit(code: str, device: str, expected: Fit) -> None:
    assert fit(code, device) is expected


def test_machine_code_is_preferred_to_ptx() -> None:
    assert best_fit(("compute_80", "sm_80", "sm_86"), "sm_86") is Fit.EXACT
    assert best_fit(("compute_80", "sm_80"), "sm_86") is Fit.BINARY
    assert best_fit(("compute_75", "sm_75"), "sm_86") is Fit.PTX
    assert best_fit((), "sm_86") is Fit.NONE


def test_no_published_build_covers_a_gtx_1060_beside_an_rtx_5060() -> None:
    pair = ("sm_61", "sm_120")
    assert [covers(CU126, device) for device in pair] == [True, False]
    assert [covers(CU130, device) for device in pair] == [False, True]


@given(st.integers(5, 12), st.integers(0, 9), st.integers(5, 12), st.integers(0, 9))
def test_machine_code_never_runs_on_an_older_device_or_another_generation(a: int, b: int, c: int, d: int) -> None:
    runs = covers([sm_token(a, b)], sm_token(c, d))
    thor = {(10, 1), (11, 0)}
    if runs and not {(a, b), (c, d)} <= thor:
        assert a == c
        assert b <= d
    assert covers([sm_token(a, b)], sm_token(a, b))


@pytest.mark.parametrize(
    ("target_version", "token"),
    [
        (90008, "gfx908"),
        (90010, "gfx90a"),
        (90402, "gfx942"),
        (90500, "gfx950"),
        (100300, "gfx1030"),
        (110000, "gfx1100"),
        (110501, "gfx1151"),
        (120001, "gfx1201"),
    ],
)
def test_gfx_tokens_write_minor_and_stepping_in_hexadecimal(target_version: int, token: str) -> None:
    assert gfx_token(target_version) == token
    assert parse(token) is not None


@given(st.integers(7, 12), st.integers(0, 15), st.integers(0, 15))
def test_gfx_tokens_parse_back(major: int, minor: int, stepping: int) -> None:
    parsed = parse(gfx_token(major * 10000 + minor * 100 + stepping))
    assert parsed is not None
    assert parsed.version == (major, minor, stepping)


def test_lowest_compares_versions_and_puts_nvidia_first() -> None:
    assert lowest(["sm_100", "sm_90"]) == "sm_90"
    assert lowest(["gfx1100", "gfx942"]) == "gfx942"
    assert lowest(["gfx906", "sm_120"]) == "sm_120"
    assert lowest(["", "nonsense"]) is None


CUDA12 = Kernels("cuda12", "nvidia", CU126)
CUDA13 = Kernels("cuda13", "nvidia", CU130)
AMD = Kernels("rocm", "amd", ROCM)
CPU = Kernels("cpu", "cpu", ())


@pytest.mark.parametrize(
    ("devices", "chosen"),
    [
        ([], "cpu"),
        (["sm_90"], "cuda13"),
        (["sm_61"], "cuda12"),
        (["sm_61", "sm_61", "sm_120"], "cuda12"),
        (["sm_61", "sm_120", "sm_120"], "cuda13"),
        (["sm_61", "sm_120"], "cuda13"),
        (["gfx942"], "rocm"),
        (["gfx1151"], "cpu"),
        (["gfx942", "sm_90"], "cuda13"),
        (["gfx942", "sm_35"], "rocm"),
        ([""], "cpu"),
    ],
)
def test_auto_takes_what_covers_most_and_nvidia_first(devices: list[str], chosen: str) -> None:
    variant = auto_variant([CPU, CUDA13, CUDA12, AMD], devices)
    assert variant is not None
    assert variant.variant == chosen


def test_auto_without_any_variant_is_nothing() -> None:
    assert auto_variant([], ["sm_90"]) is None
    assert auto_variant([AMD], ["sm_90"]) is None


def test_covered_counts_devices() -> None:
    assert covered(CUDA12, ["sm_61", "sm_120", "sm_90"]) == 2
    assert covered(CPU, ["sm_90"]) == 0


@pytest.mark.parametrize(
    ("covering", "fewest"),
    [
        ([], ()),
        ([()], ()),
        ([("a",), ("b",)], ("a", "b")),
        ([("a", "b"), ("b", "c")], ("b",)),
        ([("b", "a")], ("a",)),
        ([("a", "c"), ("b", "c"), ("a", "b"), ("x",)], ("a", "b")),
    ],
)
def test_the_fewest_variants_that_cover_all_nodes(covering: list[tuple[str, ...]], fewest: tuple[str, ...]) -> None:
    assert smallest_cover(covering, ["a", "b", "c"]) == fewest


def test_many_variants_are_covered_too_if_not_always_by_the_fewest() -> None:
    names = [f"v{number:02}" for number in range(32)]
    needs = [(first, second) for first, second in zip(names[::2], names[1::2], strict=True)]
    chosen = smallest_cover(needs, names)
    assert all(set(need) & set(chosen) for need in needs) and len(chosen) == 16
