"""What counts only outside of a cluster, where programs run without an image of their own."""

import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fdl_api.nccl_env import CONF_FILES, parse_conf
from fdl_prober import libraries, limits, ports
from fdl_prober.limits import Limits
from fdl_prober.parts import Parts
from fdl_prober.ports import Listener
from fdl_prober.text import word

_TAG = re.compile(r"manylinux_(\d+)_(\d+)_|manylinux(1|2010|2014)_")
_LEGACY = {"1": (2, 5), "2010": (2, 12), "2014": (2, 17)}
"""C library of the older tags, by PEP 600."""


@dataclass(frozen=True, slots=True)
class VariantFile:
    """A file that should describe a trainer image's torch.

    Attributes:
        path: where it should be.
        text: its content; ``None`` when it cannot be read.
        error: why it cannot be read.
    """

    path: str
    text: str | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Torch:
    """torch of this Python, as far as its files tell; it is not imported.

    Attributes:
        version: e.g. ``2.10.0``.
        build: ``cu128``, ``rocm7.0`` or ``cpu``.
        glibc: the C library that its package needs, as (major, minor).
    """

    version: str = ""
    build: str = ""
    glibc: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Box:
    """A machine outside of a cluster.

    Attributes:
        environment: variables that NCCL would see, its files included.
        limits: of this program's control group.
        shared_memory_bytes: size of /dev/shm.
        listeners: who listens on fdl's ports.
        nccl: NCCL and RCCL libraries with their versions.
        hip: a HIP runtime library.
        torch: torch of this Python; ``None`` for none.
        variant_file: the file that was named, if one was.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    shared_memory_bytes: int | None = None
    listeners: tuple[Listener, ...] = ()
    nccl: Mapping[str, str] = field(default_factory=dict)
    hip: str = ""
    torch: Torch | None = None
    variant_file: VariantFile | None = None


def needed_glibc(tags: str) -> tuple[int, int] | None:
    """The newest C library that a package's ``WHEEL`` file asks for; ``None`` when it asks for none."""
    found = [
        _LEGACY[match[3]] if match[3] else (int(match[1]), int(match[2]))
        for line in tags.splitlines()
        if line.startswith("Tag:")
        for match in _TAG.finditer(line)
    ]
    return max(found, default=None)


def parse_build(version_file: str) -> str:
    """Build from the text of ``torch/version.py``: its lines name the CUDA or HIP version, or None."""
    told = dict(re.findall(r"^(cuda|hip)\b[^=]*= *'([^']+)'", version_file, re.MULTILINE))
    if "hip" in told:
        return "rocm" + ".".join(told["hip"].split(".")[:2])
    return "cu" + "".join(told["cuda"].split(".")[:2]) if "cuda" in told else "cpu"


def torch() -> Torch | None:
    """torch of this Python; nothing of it is run."""
    try:
        spec = importlib.util.find_spec("torch")
        package = importlib.metadata.distribution("torch")
    except (ImportError, ValueError, importlib.metadata.PackageNotFoundError):
        return None
    text = word(Path(spec.origin).with_name("version.py")) if spec and spec.origin else ""
    return Torch(package.version.partition("+")[0], parse_build(text), needed_glibc(package.read_text("WHEEL") or ""))


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """Variables as NCCL sees them: its files fill in what the environment does not have."""
    found: dict[str, str] = {}
    own = env.get("NCCL_CONF_FILE")
    for name in (CONF_FILES[0], own or CONF_FILES[1]):
        try:
            found |= parse_conf(Path(name).expanduser().read_text(errors="replace"))
        except (OSError, RuntimeError):
            continue
    return found | dict(env)


def variant_file(path: Path | None) -> VariantFile | None:
    """The named file's content, or why there is none."""
    if path is None:
        return None
    try:
        return VariantFile(str(path), text=path.read_text(errors="replace")[: 1 << 20])
    except OSError as error:
        return VariantFile(str(path), error=error.strerror or type(error).__name__)


def observe(
    sysfs: Path, proc: Path, listen_ports: Sequence[int], variant: Path | None
) -> tuple[Box, Mapping[str, str]]:
    """Look at what counts outside of a cluster.

    Returns:
        The machine, and the parts of it that gave no answer, with the reason: ``environment``, ``control-group``,
        ``ports``, ``installed-nccl``, ``installed-hip``, ``torch``.
    """
    packages, loader = libraries.packages(), libraries.loader_folders()
    rocm = tuple(Path(folder) for folder in libraries.ROCM_FOLDERS)
    parts = Parts()
    found = Box(
        environment=parts.look("environment", {}, environment, os.environ),
        limits=parts.look("control-group", Limits(), limits.control_group, sysfs, proc),
        shared_memory_bytes=limits.shared_memory_bytes(),
        listeners=parts.look("ports", (), ports.listening, proc, listen_ports),
        nccl=parts.look("installed-nccl", {}, libraries.local_nccl, (*packages, *loader, *rocm)),
        hip=parts.look("installed-hip", "", libraries.hip, (*rocm, *packages, *loader)),
        torch=parts.look("torch", None, torch),
        variant_file=variant_file(variant),
    )
    return found, parts.silent
