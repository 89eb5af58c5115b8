"""NVIDIA devices through the real path: a process, ctypes, pynvml, and a C library in the driver's place."""

import shutil
import subprocess
from pathlib import Path

import pytest

from fdl_prober import nvml
from fdl_prober.settings import LOADER

SOURCE = Path(__file__).parents[3] / "tools/cluster/fake-nvml/nvml.c"
LIBRARY = "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
TWO_H100 = (
    "count 2\narch 9.0\nname NVIDIA H100 80GB HBM3\nmemory 85899345920\ndriver 580.65.06\ncuda 13000\nseed 7f3a\n"
)

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler to build the simulated library")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True, timeout=120)
    return library


@pytest.fixture
def root(built: Path, tmp_path: Path) -> Path:
    (tmp_path / LIBRARY).parent.mkdir(parents=True)
    shutil.copy(built, tmp_path / LIBRARY)
    describe(tmp_path, TWO_H100)
    return tmp_path


def describe(root: Path, text: str) -> None:
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/fdl-fake-nvml.conf").write_text(text)


async def test_devices_and_driver(root: Path) -> None:
    report = await nvml.observe([str(root)])
    assert report.loaded
    assert (report.driver, report.cuda, report.library) == ("580.65.06", "13.0", str(root / LIBRARY))
    first, second = report.devices
    assert (first.arch, first.name, first.memory_bytes) == ("sm_90", "NVIDIA H100 80GB HBM3", 85899345920)
    assert (first.pci, first.device_node, first.mig) == ("0000:10:00.0", "/dev/nvidia0", False)
    assert first.uuid != second.uuid
    assert second.device_node == "/dev/nvidia1"


async def test_changed_hardware_is_seen_at_the_next_look(root: Path) -> None:
    assert len((await nvml.observe([str(root)])).devices) == 2
    describe(root, TWO_H100.replace("count 2", "count 1").replace("9.0", "12.0"))
    assert [device.arch for device in (await nvml.observe([str(root)])).devices] == ["sm_120"]


async def test_a_driver_that_is_not_loaded_is_missing(root: Path) -> None:
    (root / "etc/fdl-fake-nvml.conf").unlink()
    report = await nvml.observe([str(root)])
    assert (report.loaded, report.missing, report.devices) == (False, True, ())
    assert "Driver Not Loaded" in report.error
    assert report.library == str(root / LIBRARY)


async def test_a_driver_without_devices_is_loaded(root: Path) -> None:
    describe(root, "count 0\ndriver 580.65.06\n")
    report = await nvml.observe([str(root)])
    assert (report.loaded, report.devices) == (True, ())


async def test_the_first_root_that_answers_wins(root: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    (broken / LIBRARY).parent.mkdir(parents=True)
    (broken / LIBRARY).write_text("this is no library")
    empty = tmp_path / "empty"
    report = await nvml.observe([str(empty), str(broken), str(root)])
    assert report.library == str(root / LIBRARY)


async def test_a_broken_library_is_told_from_none(tmp_path: Path) -> None:
    (tmp_path / LIBRARY).parent.mkdir(parents=True)
    (tmp_path / LIBRARY).write_text("this is no library")
    broken = await nvml.observe([str(tmp_path)])
    assert not broken.missing
    assert "invalid ELF header" in broken.error or "file too short" in broken.error
    nothing = await nvml.observe([str(tmp_path / "elsewhere")])
    assert nothing.missing
    assert nothing.library == ""


def compile_driver(root: Path, body: str) -> None:
    """A library whose start is ``body``: a driver that misbehaves."""
    (root / LIBRARY).parent.mkdir(parents=True)
    source = root / "driver.c"
    source.write_text(f"#include <stdlib.h>\n#include <unistd.h>\nint nvmlInitWithFlags(unsigned f) {{ {body} }}\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", root / LIBRARY, source], check=True, timeout=120)


async def test_a_driver_that_hangs_costs_one_look(tmp_path: Path) -> None:
    compile_driver(tmp_path, "for (;;) pause();")
    report = await nvml.observe([str(tmp_path)], timeout_seconds=3)
    assert (report.loaded, report.missing, report.unknown) == (False, False, True)
    assert "did not answer within 3 s" in report.error


async def test_a_driver_that_crashes_costs_one_look(tmp_path: Path) -> None:
    compile_driver(tmp_path, "abort();")
    report = await nvml.observe([str(tmp_path)])
    assert (report.loaded, report.missing, report.unknown) == (False, False, True)
    assert report.error == "the look at NVML was ended by SIGABRT"


async def test_a_library_of_another_version_than_the_kernel_module_is_told(tmp_path: Path) -> None:
    compile_driver(tmp_path, "return 18;")  # NVML_ERROR_LIB_RM_VERSION_MISMATCH
    report = await nvml.observe([str(tmp_path)])
    assert (report.loaded, report.missing, report.mismatch) == (False, False, True)
    assert report.error


def test_every_usual_folder_is_searched(tmp_path: Path) -> None:
    for folder in nvml.FOLDERS:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / nvml.NVML_LIBRARY).touch()
    assert nvml.candidates([LOADER, str(tmp_path)]) == [
        nvml.NVML_LIBRARY,
        *(str(tmp_path / folder / nvml.NVML_LIBRARY) for folder in nvml.FOLDERS),
    ]
