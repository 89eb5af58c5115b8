"""Does a torch build have kernels for a device? Pure rules over architecture tokens.

A token names an architecture as torch does: ``sm_90`` (NVIDIA machine code), ``compute_90`` (NVIDIA PTX, compiled on
the device at load time), ``gfx942`` (AMD machine code). Tokens are parsed and compared by their parts, never as text:
``sm_8`` is not the beginning of ``sm_86`` and ``gfx90`` is not ``gfx90a``.

Rules for NVIDIA follow the CUDA programming guide (binary and PTX compatibility) and the table that torch itself uses
(``torch.cuda.DEVICE_REQUIREMENT``): machine code runs on the same major version with the same or a higher minor one,
but not across the border between cards and Tegra modules; code for one architecture (suffix ``a``) only on exactly
that one, code for a family (suffix ``f``) within that family; PTX on the same or any later version. AMD machine code
runs on exactly its own architecture.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from math import comb
from typing import Final, Literal

_NVIDIA: Final = re.compile(r"(?P<kind>sm|compute)_(?P<digits>[0-9]{2,3})(?P<suffix>[af]?)")
_AMD: Final = re.compile(r"gfx(?P<digits>[0-9]{1,3}[0-9a-f][0-9a-f])")
_TEGRA: Final = frozenset({(5, 3), (6, 2), (7, 2), (8, 7), (10, 1), (11, 0)})
_THOR: Final = frozenset({(10, 1), (11, 0)})
"""One chip under two names: 10.1 was renamed to 11.0 in CUDA 13."""


class Fit(StrEnum):
    """How code for an architecture runs on a device."""

    EXACT = "exact"
    BINARY = "binary"
    """By binary compatibility: code for an older minor version of the same major one."""
    PTX = "ptx"
    """Compiled from PTX at load time: works, but the first start is slow and vendor libraries may lack kernels."""
    NONE = "none"


_ORDER: Final = (Fit.EXACT, Fit.BINARY, Fit.PTX, Fit.NONE)


@dataclass(frozen=True, slots=True)
class Token:
    """A parsed architecture token.

    Attributes:
        vendor: whose devices the code runs on.
        version: (major, minor) of NVIDIA's compute capability, (major, minor, stepping) of AMD's target.
        suffix: ``a`` or ``f`` of NVIDIA's architecture- and family-specific code, else empty.
        ptx: whether it is PTX and not machine code.
    """

    vendor: Literal["nvidia", "amd"]
    version: tuple[int, ...]
    suffix: str = ""
    ptx: bool = False


def parse(token: str) -> Token | None:
    """Parse a token; ``None`` when it is none (a newer naming, a generic AMD target, a typing error).

    Features that HIP adds to a target (``gfx90a:sramecc+:xnack-``) are dropped.
    """
    if match := _NVIDIA.fullmatch(token):
        digits = match["digits"]
        version = (int(digits[:-1]), int(digits[-1]))
        return Token("nvidia", version, match["suffix"], ptx=match["kind"] == "compute")
    if match := _AMD.fullmatch(token.split(":", 1)[0]):
        digits = match["digits"]
        return Token("amd", (int(digits[:-2]), int(digits[-2], 16), int(digits[-1], 16)))
    return None


def sm_token(major: int, minor: int) -> str:
    """Token of an NVIDIA device by its compute capability: (9, 0) is ``sm_90``."""
    return f"sm_{major}{minor}"


def gfx_token(target_version: int) -> str:
    """Token of an AMD device by the kernel's ``gfx_target_version``: 90402 is ``gfx942``, 90010 is ``gfx90a``.

    The number is major * 10000 + minor * 100 + stepping; minor and stepping are written as one hexadecimal digit each.
    """
    return f"gfx{target_version // 10000}{target_version // 100 % 100:x}{target_version % 100:x}"


def _binary_fit(code: Token, device: Token) -> Fit:
    if code.version == device.version or (code.version in _THOR and device.version in _THOR):
        return Fit.EXACT
    if code.suffix == "a" or code.version in _TEGRA or device.version in _TEGRA:
        return Fit.NONE
    same_major = code.version[0] == device.version[0] and code.version[1] <= device.version[1]
    return Fit.BINARY if same_major else Fit.NONE


def _ptx_fit(code: Token, device: Token) -> Fit:
    if code.suffix == "a":
        return Fit.PTX if code.version == device.version else Fit.NONE
    if code.suffix == "f" and code.version[0] != device.version[0]:
        return Fit.NONE
    return Fit.PTX if code.version <= device.version else Fit.NONE


def fit(code: str, device: str) -> Fit:
    """How code for the architecture ``code`` runs on a device of the architecture ``device``."""
    built, present = parse(code), parse(device)
    if built is None or present is None or built.vendor != present.vendor:
        return Fit.NONE
    if built.vendor == "amd":
        return Fit.EXACT if built.version == present.version else Fit.NONE
    return _ptx_fit(built, present) if built.ptx else _binary_fit(built, present)


def best_fit(codes: Iterable[str], device: str) -> Fit:
    """The best of all fits of a build's architectures on one device."""
    return min((fit(code, device) for code in codes), key=_ORDER.index, default=Fit.NONE)


def covers(codes: Iterable[str], device: str) -> bool:
    """Whether a build with these architectures runs on the device at all."""
    return best_fit(codes, device) is not Fit.NONE


def lowest(tokens: Iterable[str]) -> str | None:
    """The oldest of some device architectures; NVIDIA's come before AMD's on a node with both."""
    parsed = [(token, found) for token in tokens if (found := parse(token)) is not None]
    if not parsed:
        return None
    return min(parsed, key=lambda pair: (pair[1].vendor != "nvidia", pair[1].version))[0]


@dataclass(frozen=True, slots=True)
class Kernels:
    """What a variant's torch covers.

    Attributes:
        variant: name of the variant.
        vendor: ``nvidia``, ``amd`` or ``cpu``.
        archs: architecture tokens that its torch has kernels for; none for ``cpu``.
    """

    variant: str
    vendor: str
    archs: tuple[str, ...]


def covered(kernels: Kernels, devices: Iterable[str]) -> int:
    """Number of the devices (one token each) that a variant covers."""
    return sum(covers(kernels.archs, device) for device in devices)


def auto_variant(variants: Sequence[Kernels], devices: Sequence[str]) -> Kernels | None:
    """The variant that ``auto`` stands for on a node.

    NVIDIA wins on a node with devices of both vendors. Of a vendor's variants the one that covers most devices is
    taken, the first listed where several do. A node whose devices nobody covers falls back to the first cpu variant.

    Args:
        variants: all variants, in their listed order.
        devices: one architecture token per device of the node.
    """
    for vendor in ("nvidia", "amd"):
        own = [device for device in devices if (token := parse(device)) is not None and token.vendor == vendor]
        candidates = [variant for variant in variants if variant.vendor == vendor and covered(variant, own)]
        if candidates:
            return max(candidates, key=lambda variant: covered(variant, own))
    return next((variant for variant in variants if variant.vendor == "cpu"), None)


MAX_CHOICES: Final = 100_000
"""Sets of variants that are tried one by one; beyond that the answer may have one more than is needed."""


def smallest_cover(covering: Iterable[Iterable[str]], order: Sequence[str]) -> tuple[str, ...]:
    """The fewest variants so that each node has one that covers it.

    Args:
        covering: for each node the names of the variants that cover it. Nodes that nobody covers are left out.
        order: all variants; of equally small sets the one that is listed first is taken.

    Returns:
        Names in the order of ``order``; empty when there is no node to cover.
    """
    nodes = {frozenset(names) & frozenset(order) for names in covering} - {frozenset()}
    # A node that is covered by everything that covers another one asks for nothing new.
    needs = [node for node in nodes if not any(other < node for other in nodes)]
    useful = [name for name in order if any(name in node for node in needs)]
    for size in range(len(useful) + 1):
        if comb(len(useful), size) > MAX_CHOICES:
            break
        for chosen in combinations(useful, size):
            if all(node & set(chosen) for node in needs):
                return chosen
    chosen_so_far: list[str] = []
    while open_nodes := [node for node in needs if not node & set(chosen_so_far)]:
        chosen_so_far.append(max(useful, key=lambda name: sum(name in node for node in open_nodes)))
    return tuple(name for name in order if name in chosen_so_far)
