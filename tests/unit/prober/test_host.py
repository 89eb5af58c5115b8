"""The machine, the volume and the whole look."""

import hashlib
import os
from pathlib import Path

import pytest

from fdl_prober import host, sentinel
from fdl_prober.observe import observe
from fdl_prober.settings import LOADER, Settings


def test_this_machine() -> None:
    seen = host.observe(Path("/sys"), Path("/proc"), [])
    assert seen.cpus == os.cpu_count()
    assert seen.memory_bytes == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert seen.cpu_model
    assert seen.kernel == os.uname().release
    assert "lo" not in {item.name for item in seen.interfaces}


def test_interfaces_of_a_recorded_tree(tmp_path: Path) -> None:
    for name, state, speed in (("eth0", "up", "25000"), ("ib0", "down", "-1"), ("lo", "unknown", "")):
        folder = tmp_path / "sys/class/net" / name
        folder.mkdir(parents=True)
        (folder / "operstate").write_text(state + "\n")
        (folder / "speed").write_text(speed + "\n")
    (tmp_path / "sys/class/net/bonding_masters").write_text("\n")
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/if_inet6").write_text(
        "fd000000000000000000000000000007 02 40 00 80 eth0\nfe800000000000000000000000000001 02 40 20 80 eth0\n"
    )
    eth, ib = host.interfaces(tmp_path / "sys", tmp_path / "proc")
    assert (eth.name, eth.up, eth.speed_mbps) == ("eth0", True, 25000)
    assert "fd00::7" in eth.addresses
    assert not any(address.startswith("fe80") for address in eth.addresses)
    assert (ib.name, ib.up, ib.speed_mbps) == ("ib0", False, 0)


def test_a_machine_that_says_nothing(tmp_path: Path) -> None:
    assert host.memory_bytes(tmp_path) == 0
    assert host.cpu_model(tmp_path) == os.uname().machine
    assert host.interfaces(tmp_path, tmp_path) == ()


def test_nccl_libraries_by_the_version_of_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    for name in ("libnccl.so.2.27.3", "librccl.so.1.0.70000", "libnccl-net.so", "libncclprofiler.so.1"):
        (folder / name).touch()
    (folder / "libnccl.so.2").symlink_to("libnccl.so.2.27.3")
    (folder / "libnccl.so").symlink_to("libnccl.so.2")
    found = host.nccl_libraries([str(tmp_path), "/does/not/exist"])
    assert found == {str(folder / "libnccl.so.2.27.3"): "2.27.3", str(folder / "librccl.so.1.0.70000"): "1.0.70000"}
    assert str(folder / "libnccl.so.2.27.3") not in host.nccl_libraries([LOADER])


@pytest.mark.parametrize(("mode", "closed"), [(0o666, False), (0o660, False), (0o600, True), (0o640, True)])
def test_device_files_that_members_cannot_open(tmp_path: Path, mode: int, closed: bool) -> None:
    file = tmp_path / "nvidia0"
    file.touch()
    file.chmod(mode)
    found = host.closed_device_files([file, tmp_path / "not-there"])
    assert found == ([f"{file} has mode {mode:04o}"] if closed else [])


async def test_the_sentinel_is_hashed(tmp_path: Path) -> None:
    file = tmp_path / "sentinel"
    file.write_bytes(b"the same on every node")
    seen = await sentinel.observe(file)
    assert (seen.sha256, seen.error) == (hashlib.sha256(b"the same on every node").hexdigest(), "")


async def test_a_sentinel_that_is_not_there_is_named(tmp_path: Path) -> None:
    seen = await sentinel.observe(tmp_path / "none")
    assert (seen.sha256, seen.error) == ("", "No such file or directory")


async def test_a_mount_that_hangs_costs_one_look(tmp_path: Path) -> None:
    """A named pipe without a writer blocks its reader like a dead file server."""
    os.mkfifo(tmp_path / "hangs")
    seen = await sentinel.observe(tmp_path / "hangs", timeout_seconds=2)
    assert "did not end within 2 s" in seen.error


DATA = Path(__file__).parent / "data"


async def test_a_whole_look_at_a_real_node() -> None:
    seen = await observe(Settings(node="n1", driver_roots=(), sysfs_root=DATA / "mixed/sys"), simulated=False)
    assert [device.arch for device in seen.kfd.devices] == ["gfx90a", "gfx1030"]
    assert seen.plugged == {"amd": 2, "nvidia": 1}
    assert seen.nvml.missing


async def test_a_whole_look_at_a_simulated_node_sees_nothing_real(tmp_path: Path) -> None:
    (tmp_path / "amd").symlink_to(DATA / "mi300x")
    settings = Settings(node="n1", simulated_root=tmp_path, sysfs_root=DATA / "mixed/sys")
    seen = await observe(settings, simulated=True)
    assert [device.arch for device in seen.kfd.devices] == ["gfx942"] * 8
    assert seen.plugged == {}
    assert seen.nvml.missing
