"""floDl's libtorch variants as variants of FdlCluster: which architectures their torch has kernels for."""

import hashlib
import re
from dataclasses import dataclass
from typing import Final

_CU126: Final = ("50", "52", "60", "61", "70", "75", "80", "86", "89", "90")
_CU128: Final = ("70", "75", "80", "86", "89", "90", "120")
_ROCM: Final = (
    "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1101", "gfx1102", "gfx1150", "gfx1151",
    "gfx1200", "gfx1201",
)  # fmt: skip

PRECOMPILED: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "cpu": ("cpu", ()),
    "cu126": ("nvidia", tuple(f"sm_{digits}" for digits in _CU126)),
    "cu128": ("nvidia", tuple(f"sm_{digits}" for digits in _CU128)),
    "rocm70": ("amd", _ROCM),
    "rocm71": ("amd", _ROCM),
}
"""floDl's downloads (libtorch 2.10.0): vendor and architectures."""

MAX_NAME: Final = 30
_PART: Final = re.compile(r"sm_?(?P<sm>[0-9]{2,3})|(?P<gfx>gfx[0-9]{1,3}[0-9a-f]{2})")


@dataclass(frozen=True, slots=True)
class Torch:
    """What a libtorch variant of floDl's is.

    Attributes:
        name: name for FdlCluster spec.variants[].name.
        vendor: ``nvidia``, ``amd`` or ``cpu``.
        archs: architectures that it has kernels for; empty for cpu, and where they are not known.
    """

    name: str
    vendor: str
    archs: tuple[str, ...]

    @property
    def known(self) -> bool:
        """Whether it can be a variant of FdlCluster: only cpu has no architecture."""
        return self.vendor == "cpu" or bool(self.archs)


def _name(base: str) -> str:
    """A name for a variant; a long one ends with a hash, since what differs may stand at its end."""
    name = re.sub(r"[^a-z0-9]+", "-", base).strip("-") or "torch"
    if len(name) <= MAX_NAME:
        return name
    tail = hashlib.sha256(name.encode()).hexdigest()[:6]
    return f"{name[: MAX_NAME - len(tail) - 1].rstrip('-')}-{tail}"


def torch(arch: str) -> Torch:
    """The variant that a floDl ``arch`` names, e.g. ``precompiled/cu128`` or ``builds/sm61-sm120``.

    A name that says nothing is taken for NVIDIA's, floDl's usual case, with unknown architectures.
    """
    base = arch.rstrip("/").rpartition("/")[2].lower()
    name = _name(base)
    if name == "auto":
        name = "torch"
    if (found := PRECOMPILED.get(base.replace(".", ""))) is not None:
        return Torch(name, *found)
    parts = [match for part in re.split(r"[-+,]", base) if (match := _PART.fullmatch(part)) is not None]
    archs = tuple(dict.fromkeys(f"sm_{match['sm']}" if match["sm"] else match["gfx"] for match in parts))
    vendors = {"nvidia" if arch.startswith("sm_") else "amd" for arch in archs}
    if len(vendors) == 1:
        return Torch(name, vendors.pop(), archs)
    return Torch(name, "amd" if base.startswith("rocm") else "nvidia", ())
