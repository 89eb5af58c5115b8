"""What the torch of this image covers: the facts in ``/opt/fdl/variant.json``.

``python -m fdl_trainer.variant --name cpu`` prints the JSON. Image builds run this file alone, before the rest of the
trainer is there, so it imports only the standard library and torch. Nothing here needs a device: a build machine has
none, so every fact comes from what torch was compiled with.
"""

import argparse
import ctypes
import importlib
import json
import os
import platform
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Variant:
    """The JSON object in ``/opt/fdl/variant.json``; field names are its keys."""

    name: str
    """Name of the variant in FdlCluster (``cpu``, ``cuda``, ``rocm`` or a user's own)."""

    torchVersion: str  # noqa: N815 - a key of the JSON object
    """``torch.__version__`` as torch says it, such as ``2.6.0+debian``."""

    build: str
    """``cpu``, ``cu<major><minor>`` or ``rocm<major>.<minor>``."""

    archs: tuple[str, ...]
    """Architectures that torch has kernels for (``sm_90``, ``gfx942``), PTX (``compute_90``) included; empty on cpu."""

    ncclVersion: str | None  # noqa: N815 - a key of the JSON object
    """NCCL or RCCL that torch loads (``2.30.7``); null where torch has no such backend."""

    pythonVersion: str  # noqa: N815 - a key of the JSON object
    """Python that runs torch, such as ``3.13.5``."""

    blas: str
    """Library that serves matrix products on the CPU: ``openblas``, ``mkl``, ``reference`` or ``unknown``."""


def build_name(cuda: str | None, hip: str | None) -> str:
    """Short name of a torch build from ``torch.version.cuda`` and ``torch.version.hip`` (both null on cpu)."""
    if hip:
        return "rocm" + ".".join(hip.split(".")[:2])
    if cuda:
        return "cu" + "".join(cuda.split(".")[:2])
    return "cpu"


def nccl_text(version: object) -> str | None:
    """``torch.cuda.nccl.version()`` as text: a tuple today, one number (2 030 007 or 2 708) in older releases."""
    if isinstance(version, tuple):
        return ".".join(str(part) for part in version)
    if isinstance(version, int):
        major, minor_base = (10000, 100) if version >= 10000 else (1000, 100)
        return f"{version // major}.{version % major // minor_base}.{version % minor_base}"
    return None


def blas_name(config: str, mapped: str) -> str:
    """BLAS in use.

    Args:
        config: text of ``torch.__config__.show()``.
        mapped: text of ``/proc/self/maps`` after a matrix product. It decides only where the settings say "generic":
            Debian's torch is linked against a BLAS that the system chooses. Elsewhere it would mislead, since NumPy
            maps an OpenBLAS of its own.
    """
    setting = re.search(r"BLAS_INFO=(\w+)", config)
    if setting and setting[1] != "generic":
        return setting[1].lower()
    if "libopenblas" in mapped or "openblas-pthread" in mapped:
        return "openblas"
    if "libblas.so" in mapped:
        return "reference"
    return "unknown"


def arch_list(flags: str | None) -> tuple[str, ...]:
    """Architectures in the compiler flags that torch keeps (``sm_80 sm_90 compute_90`` or ``gfx90a:xnack- gfx942``)."""
    names = {flag.split(":")[0] for flag in (flags or "").split()}
    return tuple(sorted(names, key=lambda name: (len(name), name)))


def detect(name: str) -> Variant:
    """Ask the torch of this interpreter.

    Raises:
        ImportError: this interpreter has no torch, or a library of torch is missing.
    """
    import torch  # noqa: PLC0415 - the pure functions above are used and tested without torch

    torch.ones(8, 8) @ torch.ones(8, 8)  # loads the BLAS
    accelerated = torch.version.cuda is not None or torch.version.hip is not None
    return Variant(
        name=name,
        torchVersion=str(torch.__version__),
        build=build_name(torch.version.cuda, torch.version.hip),
        archs=arch_list(torch._C._cuda_getArchFlags()) if accelerated else (),
        ncclVersion=nccl_text(nccl_version(torch)) if accelerated else None,
        pythonVersion=platform.python_version(),
        blas=blas_name(torch.__config__.show(), _mapped_files()),
    )


def nccl_version(torch: Any) -> object:
    """NCCL or RCCL version that torch uses in this process; null where it was built without.

    What the library itself says comes first: one that is preloaded is another than torch was built with.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_nccl_available()):
        return None
    runtime = getattr(torch.distributed.ProcessGroupNCCL, "get_runtime_nccl_version", None)
    if runtime is not None:
        return tuple(int(part) for part in runtime())
    loaded = loaded_nccl("librccl.so.1" if torch.version.hip else "libnccl.so.2")
    return loaded or importlib.import_module("torch.cuda.nccl").version()


def loaded_nccl(library: str) -> int | None:
    """Version number that a library loaded in this process gives itself (22803 is 2.28.3); ``None`` if it is not."""
    try:
        version = ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_NOW).ncclGetVersion
    except (OSError, AttributeError):
        return None
    number = ctypes.c_int()
    return number.value if version(ctypes.byref(number)) == 0 else None


def _mapped_files() -> str:
    """Files mapped into this process; empty where the system has no ``/proc``."""
    try:
        return Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def main(arguments: list[str] | None = None) -> int:
    """Print the facts as JSON."""
    parser = argparse.ArgumentParser(prog="fdl_trainer.variant", description=main.__doc__)
    parser.add_argument("--name", required=True, help="name of the variant, as FdlCluster lists it")
    options = parser.parse_args(arguments)
    json.dump(asdict(detect(options.name)), sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
