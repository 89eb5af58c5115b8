"""A bridge image as ``fdl images build nccl-bridge`` makes it, from a wheel with a library of one function.

NVIDIA's own has 400 MB. For CUDA 0, which does not exist: nobody takes the image for one of theirs.
"""

import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from fdl_cli.images.catalog import reference
from fdl_cli.images.command import ensure_images, image_store
from fdl_cli.images.workshop import Options

NAME = "nccl-bridge"
IMAGE = reference(NAME)
_SOURCE = "int ncclGetVersion(int *version) { *version = %d; return 0; }\n"


def wheel(folder: Path, version: str) -> str:
    """Make a wheel whose library says ``version``; what pip is asked for to get it."""
    major, minor, patch = (int(part) for part in version.split("."))
    source, library = folder / "nccl.c", folder / "libnccl.so.2"
    source.write_text(_SOURCE % (major * 10_000 + minor * 100 + patch))
    command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", str(library), str(source)]
    subprocess.run(command, check=True, timeout=60)
    about = f"nvidia_nccl_cu0-{version}.dist-info"
    texts = {
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: nvidia-nccl-cu0\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: fdl\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": "",
    }
    with zipfile.ZipFile(folder / f"nvidia_nccl_cu0-{version}-py3-none-any.whl", "w") as archive:
        archive.write(library, f"nvidia/nccl/lib/{library.name}")
        for name, text in texts.items():
            archive.writestr(name, text)
    return f"nvidia-nccl-cu0=={version}"


@contextmanager
def built(folder: Path, version: str) -> Iterator[Path]:
    """The archive of a bridge image with this version; what was the newest bridge before is so again afterwards."""
    store = image_store()
    before = store.current(NAME)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PIP_FIND_LINKS", str(folder))
        environment.setenv("PIP_NO_INDEX", "1")
        options = Options(nccl=wheel(folder, version))
        archive = ensure_images((NAME,), options=options, console=Console(stderr=True))[NAME]
    try:
        yield archive
    finally:
        if before is not None:
            store.point(NAME, before.inputs)
        else:
            (store.root / f"{NAME}.current.tar").unlink(missing_ok=True)
