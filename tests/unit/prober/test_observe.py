"""The whole look: recorded trees, and sources that do not answer."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from fdl_prober import observe, volumes
from fdl_prober.facts import gather
from fdl_prober.observe import Observer
from fdl_prober.settings import Folder, Settings

DATA = Path(__file__).parent / "data"
REAL = Settings(node="n1", driver_roots=(), sysfs_root=DATA / "mixed/sys")


async def test_a_whole_look_at_a_real_node() -> None:
    seen = await Observer(REAL).look(simulated=False)
    assert [device.arch for device in seen.kfd.devices] == ["gfx90a", "gfx1030"]
    assert seen.plugged == {"amd": 2, "nvidia": 1}
    assert seen.nvml.missing
    assert (seen.silent, seen.box, seen.holders) == ({}, None, ())
    assert {file.path.rsplit("/", 1)[-1] for file in seen.device_files} >= {"kfd"}


async def test_a_whole_look_at_a_simulated_node_sees_nothing_real(tmp_path: Path) -> None:
    (tmp_path / "amd").symlink_to(DATA / "mi300x")
    settings = Settings(node="n1", simulated_root=tmp_path, sysfs_root=DATA / "mixed/sys")
    seen = await Observer(settings).look(simulated=True)
    assert [device.arch for device in seen.kfd.devices] == ["gfx942"] * 8
    assert (seen.plugged, seen.xids) == ({}, ())
    assert seen.device_files and not any(file.exists for file in seen.device_files)
    assert seen.nvml.missing


async def test_the_device_files_of_a_simulated_node_lie_beside_its_drivers(tmp_path: Path) -> None:
    (tmp_path / "amd/dev/dri").mkdir(parents=True)
    (tmp_path / "amd/sys").symlink_to(DATA / "mi300x/sys")
    for name, mode in (("kfd", 0o600), ("dri/renderD128", 0o666)):
        (tmp_path / "amd/dev" / name).touch()
        (tmp_path / "amd/dev" / name).chmod(mode)
    seen = await Observer(Settings(node="n1", simulated_root=tmp_path)).look(simulated=True)
    present = {file.path: file.mode for file in seen.device_files if file.exists}
    assert present == {f"{tmp_path}/amd/dev/kfd": 0o600, f"{tmp_path}/amd/dev/dri/renderD128": 0o666}


async def test_a_file_that_hangs_costs_its_own_source_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A named pipe without a writer blocks its reader as a stuck driver's file in sysfs does."""
    node = tmp_path / "class/kfd/kfd/topology/nodes/1"
    node.mkdir(parents=True)
    os.mkfifo(node / "properties")
    monkeypatch.setattr(observe, "LIMIT_SECONDS", 0.2)
    observer = Observer(Settings(node="n1", driver_roots=(), sysfs_root=tmp_path))
    try:
        first = await observer.look(simulated=False)
        again = await observer.look(simulated=False)
    finally:
        (node / "properties").open("w").close()  # lets the reader go
    assert set(first.silent) == {"kfd"} and "did not end" in first.silent["kfd"]
    assert "earlier look" in again.silent["kfd"]
    assert again.host.cpus > 0


async def test_what_a_deep_check_proved_of_a_device_stands_while_a_file_of_the_machine_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's own driver of AMD's devices is told by the kernel's release, which no file has to tell."""
    (tmp_path / "cpuinfo").write_text("model name : a processor\n")
    observer = Observer(dataclasses.replace(REAL, proc_root=tmp_path))

    def told(seen: observe.Observation) -> dict[str, str]:
        values: dict[str, Any] = {"simulated": False, "variants": (), "cluster_known": True, "deep": {}}
        return dict(gather("n1", seen, clock_offset_seconds=None, **values).fingerprints)

    before = await observer.look(simulated=False)
    (tmp_path / "cpuinfo").unlink()
    os.mkfifo(tmp_path / "cpuinfo")
    monkeypatch.setattr(observe, "LIMIT_SECONDS", 0.2)
    try:
        stuck = await observer.look(simulated=False)
    finally:
        (tmp_path / "cpuinfo").open("w").close()
    assert set(stuck.silent) == {"host"} and not before.silent and not before.kfd.driver
    assert told(stuck)["amd"] == told(before)["amd"]


async def test_reading_is_timed_now_and_then_only(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(os.urandom(8 << 20))
    now, folder = [0.0], Folder(tmp_path)
    observer = Observer(Settings(node="n1", driver_roots=(), folders=(folder,)), clock=lambda: now[0])
    first = (await observer.look(simulated=False)).volumes[folder].bytes_per_second
    (tmp_path / "large").unlink()
    now[0] += volumes.READ_AGAIN_SECONDS - 1
    assert first is not None and (await observer.look(simulated=False)).volumes[folder].bytes_per_second == first
    now[0] += 1
    assert (await observer.look(simulated=False)).volumes[folder].bytes_per_second is None


async def test_a_machine_outside_of_a_cluster_is_looked_at_more_closely() -> None:
    seen = await Observer(REAL, local=True).look(simulated=False)
    assert seen.box is not None and seen.box.shared_memory_bytes
