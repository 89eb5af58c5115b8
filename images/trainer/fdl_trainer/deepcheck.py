"""Deep check: does this image's torch really compute on this node's devices?

``python -m fdl_trainer.deepcheck --variant NAME --vendor nvidia|amd|cpu`` runs one kernel per visible device (or on the
processor), compares its result with one computed in plain Python, and leaves
:class:`fdl_api.report.DeepFacts` as JSON in the termination message and on standard output. Exit code 0 when every
device was right, 1 when not.

``--simulated`` is for nodes whose devices are simulated: the kernel runs on the processor in place of the device, the
architectures are those that the image claims, and the result says so; nobody takes it for a verified device.
"""

import argparse
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fdl_api.coverage import sm_token
from fdl_api.names import VARIANT_FILE
from fdl_api.report import DeepDevice, DeepFacts
from fdl_api.variantfile import VariantFileError, archs
from fdl_trainer.variant import detect

SIZE = 64
"""Edge of the matrices: large enough for the kernels that real layers use, small enough for plain Python."""

TERMINATION_LOG = "/dev/termination-log"
MAX_DESCRIPTION_BYTES = 1 << 20


def operands(size: int) -> tuple[list[list[int]], list[list[int]]]:
    """Two matrices of whole numbers from -5 to 5.

    Their product is exact in every floating-point format from bfloat16 up with float32 sums, so that the comparison
    needs no tolerance and a wrong kernel cannot hide in one.
    """
    left = [[(i * i + 3 * i * j + 5 * j) % 11 - 5 for j in range(size)] for i in range(size)]
    right = [[(2 * i * i + i * j * j + 7 * j) % 11 - 5 for j in range(size)] for i in range(size)]
    return left, right


def product(left: Sequence[Sequence[int]], right: Sequence[Sequence[int]]) -> list[list[int]]:
    """Matrix product in plain Python."""
    columns = list(zip(*right, strict=True))
    return [[sum(a * b for a, b in zip(row, column, strict=True)) for column in columns] for row in left]


def mismatch(computed: Sequence[Sequence[float]], expected: Sequence[Sequence[int]]) -> str:
    """First difference as a sentence; empty when there is none (a NaN is a difference)."""
    for i, (row, wanted) in enumerate(zip(computed, expected, strict=True)):
        for j, (value, right) in enumerate(zip(row, wanted, strict=True)):
            if value != right:
                return f"matrix product is wrong at [{i}][{j}]: {value} in place of {right}"
    return ""


def check_device(torch: Any, device: str, index: int) -> DeepDevice:
    """Run one matrix product on a device and compare it.

    Args:
        torch: the module.
        device: torch's name of the device, e.g. ``cuda:0`` or ``cpu``.
        index: number of the device in the report.
    """
    name, arch = _identity(torch, device)
    left, right = operands(SIZE)
    try:
        a, b = (torch.tensor(matrix, dtype=torch.float32, device=device) for matrix in (left, right))
        started = time.perf_counter()
        computed = (a @ b).cpu().tolist()  # copying waits for the kernel
        elapsed = (time.perf_counter() - started) * 1000
    except Exception as error:  # whatever a broken driver raises is the finding
        text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return DeepDevice(index=index, name=name, arch=arch, ok=False, error=text[:300])
    wrong = mismatch(computed, product(left, right))
    return DeepDevice(index=index, name=name, arch=arch, ok=not wrong, milliseconds=round(elapsed, 3), error=wrong)


def _identity(torch: Any, device: str) -> tuple[str, str]:
    if device == "cpu":
        return platform.machine(), ""
    try:
        properties = torch.cuda.get_device_properties(device)
    except Exception:  # the kernel's own error says more
        return "", ""
    gcn = str(getattr(properties, "gcnArchName", "") or "") if torch.version.hip else ""
    return properties.name, gcn.split(":")[0] or sm_token(properties.major, properties.minor)


@dataclass(frozen=True, slots=True)
class Description:
    """What the image says of itself in its ``variant.json``.

    Attributes:
        archs: architectures that it lists.
        error: why it says nothing; empty where it does.
    """

    archs: tuple[str, ...] = ()
    error: str = ""


def described(path: Path) -> Description:
    """Read the image's ``variant.json``. One that is missing or bad is a finding, and no reason to run no kernel."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_DESCRIPTION_BYTES).decode(errors="replace")
        return Description(archs(text))
    except VariantFileError as error:
        return Description(error=str(error)[:200])
    except OSError as error:
        return Description(error=f"it cannot be read: {error.strerror or type(error).__name__}")


def check(variant: str, vendor: str, simulated: bool, description: Description) -> DeepFacts:
    """Everything a deep check finds out.

    Args:
        variant: name of the variant in FdlCluster.
        vendor: vendor of the devices to check.
        simulated: run on the processor in place of devices.
        description: what the image's ``variant.json`` says.
    """
    facts = DeepFacts(
        variant=variant,
        vendor=vendor,
        simulated=simulated,
        glibc=" ".join(platform.libc_ver()),
        variant_file=description.error,
    )
    try:
        import torch  # noqa: PLC0415 - the pure functions are used without it, and a broken one is a finding

        built = detect(variant)
    except (ImportError, OSError) as error:
        return facts.model_copy(update={"error": f"torch does not load: {error}"[:400]})
    facts = facts.model_copy(
        update={
            "torch_version": built.torchVersion,
            "torch_build": built.build,
            "archs": description.archs if simulated else built.archs,
            "nccl_version": built.ncclVersion or "",
        }
    )
    on_processor = simulated or vendor == "cpu"
    if not on_processor and not torch.cuda.is_available():
        return facts.model_copy(
            update={"error": f"torch {built.torchVersion} ({built.build}) sees no {vendor} device in this container"}
        )
    names = ["cpu"] if on_processor else [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    devices = tuple(check_device(torch, name, index) for index, name in enumerate(names))
    return facts.model_copy(update={"devices": devices})


def main(arguments: list[str] | None = None) -> int:
    """Check, print, and leave the termination message."""
    parser = argparse.ArgumentParser(prog="fdl_trainer.deepcheck", description=main.__doc__)
    parser.add_argument("--variant", required=True, help="name of the variant, as FdlCluster lists it")
    parser.add_argument("--vendor", required=True, choices=("nvidia", "amd", "cpu"))
    parser.add_argument("--simulated", action="store_true", help="run on the processor in place of devices")
    options = parser.parse_args(arguments)
    variant_file = Path(os.environ.get("FDL_VARIANT_FILE", VARIANT_FILE))
    facts = check(options.variant, options.vendor, options.simulated, described(variant_file))
    text = facts.render()
    sys.stdout.write(text + "\n")
    log = Path(os.environ.get("FDL_TERMINATION_LOG", TERMINATION_LOG))
    if log.exists():
        log.write_text(text)
    return 0 if facts.passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
