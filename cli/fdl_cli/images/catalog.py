"""The images of fdl: names, references, which one stands on which."""

import re
from dataclasses import dataclass
from typing import Final

from fdl_cli.images.errors import ImageError

PREFIX: Final = "fdl.local/"
"""Repository of locally built images. Chart and examples use it; no registry answers for it, so nothing is pulled."""

TAG: Final = "dev"
"""Tag of locally built images. It stays the same: the hash of an image's inputs is in its label and archive name."""

INPUTS_LABEL: Final = "dev.fdl.inputs"
"""Image label with the hash of everything that the image was made of."""

VARIANTS: Final = ("cpu", "cuda", "rocm")

NCCL_WHEEL: Final = re.compile(r"nvidia-nccl-cu\d+==\d+\.\d+\.\d+(\.post\d+)?", re.ASCII)
"""A wheel with NCCL as pip is asked for it: the CUDA release that it was built for, and its version."""


@dataclass(frozen=True, slots=True)
class Image:
    """One image: ``images/<name>/Dockerfile`` in the repository."""

    name: str
    summary: str
    parent: str | None = None
    """Image of fdl that this one stands on; without one it stands on the Debian base."""
    needs_torch_index: bool = False
    """True where torch comes from an index that the caller has to name."""
    needs_nccl: bool = False
    """True where the caller has to name the wheel with the NCCL that it holds."""

    @property
    def dockerfile(self) -> str:
        """Path from the repository's root."""
        return f"images/{self.name}/Dockerfile"

    @property
    def reference(self) -> str:
        """Reference under which engines and nodes know the image."""
        return reference(self.name)


def reference(name: str) -> str:
    """``fdl.local/<name>:dev``."""
    return f"{PREFIX}{name}:{TAG}"


CATALOG: Final[dict[str, Image]] = {
    image.name: image
    for image in (
        Image("operator", "operator and coordinator"),
        Image("prober", "prober of the DaemonSet"),
        Image("trainer-cpu", "trainer with Debian's torch, no accelerator"),
        Image("trainer-cuda", "trainer with PyPI's torch for NVIDIA (by hand: 5.7 GB)"),
        Image("trainer-rocm", "trainer with torch of a given index for AMD (by hand)", needs_torch_index=True),
        Image("nccl-bridge", "NCCL of a given wheel for ncclBridge (by hand: 520 MB)", needs_nccl=True),
        Image("examples", "trainer-cpu with the examples and Fashion-MNIST", parent="trainer-cpu"),
    )
}


def select(names: tuple[str, ...], variant: str) -> list[Image]:
    """Images to build, parents first, each once.

    Args:
        names: names as given on the command line; ``trainer`` stands for the trainer of ``variant``. Empty means
            operator, prober, the trainer of ``variant``, and, where that is ``cpu``, the examples.
        variant: one of :data:`VARIANTS`.

    Raises:
        ImageError: a name or variant that does not exist; the text lists those that do.
    """
    if variant not in VARIANTS:
        raise ImageError(f"There is no trainer variant '{variant}': choose one of {', '.join(VARIANTS)}.")
    wanted = [f"trainer-{variant}" if name == "trainer" else name for name in names]
    if not wanted:
        wanted = ["operator", "prober", f"trainer-{variant}", *(["examples"] if variant == "cpu" else [])]
    chosen: list[Image] = []
    for name in wanted:
        image = find(name)
        for candidate in ([CATALOG[image.parent]] if image.parent else []) + [image]:
            if candidate not in chosen:
                chosen.append(candidate)
    return chosen


def find(name: str) -> Image:
    """The image of that name.

    Raises:
        ImageError: there is none; the text lists those that exist.
    """
    if name not in CATALOG:
        raise ImageError(f"There is no image '{name}': choose among {', '.join(CATALOG)}.")
    return CATALOG[name]
