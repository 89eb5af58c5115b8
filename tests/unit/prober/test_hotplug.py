"""Changes of hardware and drivers: each kind of change is seen, and nothing else is one."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fdl_prober import hotplug
from fdl_prober.observe import Observer
from fdl_prober.settings import Settings


def settings(root: Path) -> Settings:
    return Settings(
        node="n1",
        driver_roots=(str(root / "host"),),
        sysfs_root=root / "sys",
        dev_root=root / "dev",
        proc_root=root / "proc",
        simulated_root=root / "simulated",
    )


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    for name in ("sys/bus/pci/devices/0000:01:00.0", "sys/class/kfd/kfd/topology/nodes/0", "dev/dri", "host/usr/lib64"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "sys/class/kfd/kfd/topology/generation_id").write_text("1\n")
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    return tmp_path


CHANGES: dict[str, Callable[[Path], object]] = {
    "a device on the bus": lambda root: (root / "sys/bus/pci/devices/0000:02:00.0").mkdir(),
    "a device that goes": lambda root: (root / "sys/bus/pci/devices/0000:01:00.0").rmdir(),
    "a device of AMD's driver": lambda root: (root / "sys/class/kfd/kfd/topology/nodes/1").mkdir(),
    "a topology made anew": lambda root: (root / "sys/class/kfd/kfd/topology/generation_id").write_text("2\n"),
    "a driver that is loaded": lambda root: (root / "proc/driver/nvidia/version").write_text("580"),
    "a device file": lambda root: (root / "dev/nvidia0").touch(),
    "a library": lambda root: (root / "host/usr/lib64" / hotplug.NVML_LIBRARY).touch(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_is_seen(machine: Path, change: str) -> None:
    before = hotplug.marks(settings(machine), simulated=False)
    assert hotplug.marks(settings(machine), simulated=False) == before
    CHANGES[change](machine)
    assert hotplug.marks(settings(machine), simulated=False) != before


def test_other_files_are_no_hardware(machine: Path) -> None:
    before = hotplug.marks(settings(machine), simulated=False)
    (machine / "dev/pts0").touch()
    (machine / "sys/class/net").mkdir()
    assert hotplug.marks(settings(machine), simulated=False) == before


def test_simulated_hardware_changes_too(machine: Path) -> None:
    own = settings(machine)
    none = hotplug.marks(own, simulated=True)
    (machine / "simulated/nvidia/etc").mkdir(parents=True)
    (machine / "simulated/nvidia/etc/fdl-fake-nvml.conf").write_text("count 1\n")
    one = hotplug.marks(own, simulated=True)
    (machine / "simulated/nvidia/etc/fdl-fake-nvml.conf").write_text("count 10\n")
    ten = hotplug.marks(own, simulated=True)
    shutil.copytree(machine / "sys", machine / "simulated/amd/sys")
    assert len({none, one, ten, hotplug.marks(own, simulated=True)}) == 4


async def test_what_cannot_be_asked_is_no_change(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise PermissionError

    observer = Observer(settings(machine))
    assert await observer.marks(simulated=False) is not None
    monkeypatch.setattr(hotplug, "marks", refuses)
    assert await observer.marks(simulated=False) is None
