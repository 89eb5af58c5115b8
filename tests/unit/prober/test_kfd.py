"""AMD devices from recorded KFD trees."""

import os
from pathlib import Path

import pytest

from fdl_api import coverage
from fdl_api.report import parse
from fdl_prober import decide, kfd, pci

from .stories import NOW, facts, seen

DATA = Path(__file__).parent / "data"


def test_eight_mi300x() -> None:
    report = kfd.observe(DATA / "mi300x/sys")
    assert report.driver == "6.12.12"
    assert [device.arch for device in report.devices] == ["gfx942"] * 8
    assert [device.index for device in report.devices] == list(range(8))
    first, last = report.devices[0], report.devices[7]
    assert (first.name, first.pci, first.device_node) == (
        "AMD Instinct MI300X OAM",
        "0000:05:00.0",
        "/dev/dri/renderD128",
    )
    assert first.memory_bytes == 206141652992
    assert (last.pci, last.device_node) == ("0000:e5:00.0", "/dev/dri/renderD184")
    assert len({device.uuid for device in report.devices}) == 8


def test_a_radeon_has_no_product_name_and_is_a_device_all_the_same() -> None:
    (device,) = kfd.observe(DATA / "radeon/sys").devices
    assert (device.arch, device.name, device.uuid) == ("gfx1100", "unknown", "GPU-c2f8b3a0e5d41177")


def test_two_generations_in_one_node() -> None:
    instinct, radeon = kfd.observe(DATA / "mixed/sys").devices
    assert (instinct.arch, instinct.pci) == ("gfx90a", "0000:c1:00.0")
    assert (radeon.arch, radeon.pci, radeon.uuid) == ("gfx1030", "0000:23:01.0", "0000:23:01.0")


def test_no_kfd_is_an_empty_report(tmp_path: Path) -> None:
    assert kfd.observe(tmp_path) == kfd.KfdReport()


def node(root: Path, number: int, properties: str) -> Path:
    folder = root / f"devices/virtual/kfd/kfd/topology/nodes/{number}"
    folder.mkdir(parents=True)
    (folder / "properties").write_text(properties)
    return folder


def test_the_tree_below_devices_is_found_too(tmp_path: Path) -> None:
    node(tmp_path, 0, "cpu_cores_count 8\nsimd_count 0\n")
    node(tmp_path, 1, "simd_count 256\ngfx_target_version 90008\n")
    report = kfd.observe(tmp_path)
    assert [device.arch for device in report.devices] == ["gfx908"]
    assert report.source.endswith("devices/virtual/kfd/kfd/topology")


def test_nodes_are_numbered_as_numbers(tmp_path: Path) -> None:
    for number in (10, 9, 2):
        node(tmp_path, number, f"simd_count 4\ngfx_target_version 90402\nlocation_id {number << 8}\n")
    assert [d.pci for d in kfd.observe(tmp_path).devices] == ["0000:02:00.0", "0000:09:00.0", "0000:0a:00.0"]


def test_what_the_kernel_hides_is_counted_and_not_taken_for_absent(tmp_path: Path) -> None:
    node(tmp_path, 0, "cpu_cores_count 8\nsimd_count 0\n")
    node(tmp_path, 1, "")
    report = kfd.observe(tmp_path)
    assert (report.hidden, report.devices, report.error) == (1, (), "")


@pytest.mark.skipif(os.geteuid() != 0, reason="changing the reader's user needs root")
def test_a_refused_file_is_hidden_too(tmp_path: Path) -> None:
    node(tmp_path, 1, "simd_count 4\n")
    secret = tmp_path / "devices/virtual/kfd/kfd/topology/nodes/1/properties"
    secret.chmod(0)
    reached = [path for path in (tmp_path, *tmp_path.parents) if path.stat().st_uid == 0 and path != Path("/")]
    modes = {path: path.stat().st_mode for path in reached}
    try:
        for path in reached:
            path.chmod(modes[path] | 0o055)
        os.seteuid(65534)
        report = kfd.observe(tmp_path)
    finally:
        os.seteuid(0)
        for path, mode in modes.items():
            path.chmod(mode)
    assert report.hidden == 1


def test_nonsense_in_a_file_is_named(tmp_path: Path) -> None:
    node(tmp_path, 1, "simd_count many\n")
    report = kfd.observe(tmp_path)
    assert "nodes/1" in report.error
    assert "many" in report.error


def test_a_device_without_architecture_is_kept(tmp_path: Path) -> None:
    node(tmp_path, 1, "simd_count 4\n")
    (device,) = kfd.observe(tmp_path).devices
    assert device.arch == ""


@pytest.mark.parametrize(
    ("tree", "gpus"),
    [("mi300x", {"amd": 8}), ("radeon", {"amd": 1}), ("mixed", {"amd": 2, "nvidia": 1})],
)
def test_gpus_by_pci_identity(tree: str, gpus: dict[str, int]) -> None:
    """A server's own VGA chip, an Intel display and an NVIDIA audio function are no GPUs of ours."""
    assert pci.count(pci.gpus(DATA / tree / "sys")[0]) == gpus


def test_no_pci_bus_is_no_gpu(tmp_path: Path) -> None:
    assert pci.gpus(tmp_path) == ((), "")


def test_the_kernel_driver_that_holds_a_gpu(tmp_path: Path) -> None:
    for address, driver in (("0000:01:00.0", "nouveau"), ("0000:02:00.0", "vfio-pci"), ("0000:03:00.0", "")):
        folder = tmp_path / "bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "vendor").write_text("0x10de\n")
        (folder / "device").write_text("0x1c03\n")
        (folder / "class").write_text("0x030000\n")
        if driver:
            (tmp_path / "bus/pci/drivers" / driver).mkdir(parents=True)
            (folder / "driver").symlink_to(tmp_path / "bus/pci/drivers" / driver)
    (tmp_path / "bus/pci/devices/0000:04:00.0").mkdir()  # half-written
    (first, lent, free), untold = pci.gpus(tmp_path)
    assert untold == ""
    assert (first.identity, first.driver, first.lent) == ("10de:1c03", "nouveau", False)
    assert (lent.lent, free.driver) == (True, "")
    assert pci.count((first, lent, free)) == {"nvidia": 2}
    assert pci.count((lent,)) == {}


def bank(node: Path, number: int, heap: int, size: int) -> None:
    folder = node / f"mem_banks/{number}"
    folder.mkdir(parents=True)
    (folder / "properties").write_text(f"heap_type {heap}\nsize_in_bytes {size}\n")


def test_an_apu_shares_the_memory_of_the_machine(tmp_path: Path) -> None:
    both = node(tmp_path, 0, "cpu_cores_count 16\nsimd_count 8\ngfx_target_version 110501\n")
    bank(both, 0, 0, 32 << 30)
    only = node(tmp_path, 1, "simd_count 8\ngfx_target_version 90012\n")
    bank(only, 0, 0, 32 << 30)
    card = node(tmp_path, 2, "simd_count 304\ngfx_target_version 90402\n")
    bank(card, 0, 1, 192 << 30)
    found = kfd.observe(tmp_path).devices
    assert [(device.arch, device.unified) for device in found] == [
        ("gfx1151", True),
        ("gfx90c", True),
        ("gfx942", False),
    ]


def test_partitions_of_one_card_are_devices_of_their_own(tmp_path: Path) -> None:
    card = "simd_count 38\ngfx_target_version 90402\nlocation_id 1280\nunique_id 99\n"
    for number in range(8):
        node(tmp_path, number, f"{card}drm_render_minor {128 + number}\n")
    (tmp_path / "bus/pci/devices/0000:05:00.0").mkdir(parents=True)
    (tmp_path / "bus/pci/devices/0000:05:00.0/current_compute_partition").write_text("CPX\n")
    found = kfd.observe(tmp_path).devices
    assert len({device.uuid for device in found}) == 8
    assert {(device.pci, device.partition_mode) for device in found} == {("0000:05:00.0", "CPX")}


def test_a_whole_card_has_no_partition_mode(tmp_path: Path) -> None:
    node(tmp_path, 1, "simd_count 304\ngfx_target_version 90402\nlocation_id 1280\n")
    (tmp_path / "bus/pci/devices/0000:05:00.0").mkdir(parents=True)
    (tmp_path / "bus/pci/devices/0000:05:00.0/current_compute_partition").write_text("SPX\n")
    assert [device.partition_mode for device in kfd.observe(tmp_path).devices] == [""]


def test_errors_that_were_not_corrected_are_counted_over_all_blocks(tmp_path: Path) -> None:
    node(tmp_path, 1, "simd_count 304\ngfx_target_version 90402\nlocation_id 1280\n")
    ras = tmp_path / "bus/pci/devices/0000:05:00.0/ras"
    ras.mkdir(parents=True)
    (ras / "umc_err_count").write_text("ue: 2\nce: 17\n")
    (ras / "gfx_err_count").write_text("ue: 1\nce: 0\n")
    (ras / "sdma_err_count").write_text("")  # half-written
    assert kfd.observe(tmp_path).devices[0].faults.ecc_uncorrected == 3


@pytest.mark.parametrize("target", ["-1", "9", "99999999", "909999"])
def test_a_number_that_is_no_architecture_is_none(tmp_path: Path, target: str) -> None:
    node(tmp_path, 1, f"simd_count 4\ngfx_target_version {target}\n")
    (device,) = kfd.observe(tmp_path).devices
    assert device.arch == "" or coverage.parse(device.arch) is not None


@pytest.mark.parametrize("text", ["simd_count", "simd_count 4\ngfx_target_version", "simd_count 4\nlocation_id x\n"])
def test_a_half_written_file_costs_its_own_device_only(tmp_path: Path, text: str) -> None:
    node(tmp_path, 1, text)
    node(tmp_path, 2, "simd_count 304\ngfx_target_version 90402\n")
    assert "gfx942" in [device.arch for device in kfd.observe(tmp_path).devices]


@pytest.mark.parametrize(
    "text", ["", "heap_type", "heap_type 1\nsize_in_bytes", "heap_type 1\nsize_in_bytes 12x\n", "size_in_bytes 4\n"]
)
def test_a_half_written_memory_bank_costs_its_own_device_only(tmp_path: Path, text: str) -> None:
    banks = node(tmp_path, 1, "simd_count 4\ngfx_target_version 90402\n") / "mem_banks/0"
    banks.mkdir(parents=True)
    (banks / "properties").write_text(text)
    node(tmp_path, 2, "simd_count 4\ngfx_target_version 110000\n")
    report = kfd.observe(tmp_path)
    assert report.devices[-1].arch == "gfx1100"
    assert [device.arch for device in report.devices] == ["gfx1100"] and "nodes/1" in report.error


@pytest.mark.parametrize("missing", ["vendor", "class", "device"])
def test_a_half_written_pci_device_costs_itself_only(tmp_path: Path, missing: str) -> None:
    for address in ("0000:05:00.0", "0000:06:00.0"):
        device = tmp_path / "bus/pci/devices" / address
        device.mkdir(parents=True)
        for name, text in (("vendor", "0x1002\n"), ("class", "0x120000\n"), ("device", "0x74a1\n")):
            (device / name).write_text(text)
    (tmp_path / "bus/pci/devices/0000:05:00.0" / missing).write_text("")
    gpus, untold = pci.gpus(tmp_path)
    found = {gpu.address: gpu.identity for gpu in gpus}
    assert bool(untold) is (missing != "device") and (not untold or f"05:00.0/{missing} says nothing" in untold)
    assert found["0000:06:00.0"] == "1002:74a1"
    assert found.get("0000:05:00.0") == ("1002:" if missing == "device" else None)


def test_names_with_blanks_and_letters_of_any_alphabet(tmp_path: Path) -> None:
    node(tmp_path, 1, "simd_count 4\ngfx_target_version 90402\nlocation_id 1280\n")
    card = tmp_path / "bus/pci/devices/0000:05:00.0"
    card.mkdir(parents=True)
    (card / "product_name").write_bytes("Grafik-Beschleuniger \u00fc \u6c49".encode() + b"\xff\n")
    assert kfd.observe(tmp_path).devices[0].name == "Grafik-Beschleuniger \u00fc \u6c49\ufffd"


def test_two_hundred_devices(tmp_path: Path) -> None:
    for number in range(200):
        node(tmp_path, number, f"simd_count 4\ngfx_target_version 90402\nlocation_id {number << 8}\n")
    report = kfd.observe(tmp_path)
    assert [device.index for device in report.devices] == list(range(200))
    labels, made = decide.desired(facts(seen(kfd=report, plugged={"amd": 200})), NOW)
    assert labels["fdl.dev/count.amd"] == "200"
    # All annotations of an object together may have 256 KiB.
    assert parse(made.render()) == made and len(made.render().encode()) < 200_000
