"""The machine: processors, network, libraries."""

import os
from pathlib import Path

from fdl_api.report import Host, Interface
from fdl_prober import host, libraries, net
from fdl_prober.settings import LOADER


def test_this_machine() -> None:
    seen, silent = host.observe(Path("/sys"), Path("/proc"), [])
    assert silent == {}
    assert seen.cpus == os.cpu_count()
    assert seen.memory_bytes == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert seen.cpu_model
    assert seen.kernel == os.uname().release
    assert "lo" not in {item.name for item in seen.interfaces}


def test_interfaces_of_a_recorded_tree(tmp_path: Path) -> None:
    for name, state, speed in (("a-ib0", "down", "-1"), ("eth0", "up", "25000"), ("lo", "unknown", "")):
        folder = tmp_path / "sys/class/net" / name
        folder.mkdir(parents=True)
        (folder / "operstate").write_text(state + "\n")
        (folder / "speed").write_text(speed + "\n")
        (folder / "mtu").write_text("9000\n")
    (tmp_path / "sys/class/net/bonding_masters").write_text("\n")
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/if_inet6").write_text(
        "fd000000000000000000000000000007 02 40 00 80 eth0\nfe800000000000000000000000000001 02 40 20 80 eth0\n"
    )
    eth, ib = net.interfaces(tmp_path / "sys", net.ipv6(tmp_path / "proc"))
    assert (eth.name, eth.up, eth.speed_mbps, eth.mtu) == ("eth0", True, 25000, 9000)
    assert "fd00::7" in eth.addresses
    assert not any(address.startswith("fe80") for address in eth.addresses)
    assert (ib.name, ib.up, ib.speed_mbps) == ("a-ib0", False, 0)


def test_of_very_many_interfaces_the_usable_ones_are_kept(tmp_path: Path) -> None:
    for number in range(300):
        folder = tmp_path / f"sys/class/net/cali{number:03}"
        folder.mkdir(parents=True)
        (folder / "operstate").write_text("up\n")
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/if_inet6").write_text("fd000000000000000000000000000007 02 40 00 80 cali299\n")
    found = net.interfaces(tmp_path / "sys", net.ipv6(tmp_path / "proc"))
    assert len(found) == net.MAX_INTERFACES and found[0].name == "cali299"


def test_names_of_any_bytes_can_be_written(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"eth\xff\xc3\xbc")).mkdir()
    (tmp_path / "sys/class").mkdir(parents=True)
    (tmp_path / "sys/class/net").symlink_to(tmp_path, target_is_directory=True)
    names = [item.name for item in net.interfaces(tmp_path / "sys", {})]
    assert "eth\ufffd\u00fc" in names
    assert Host(interfaces=tuple(Interface(name=name) for name in names)).model_dump_json()


def test_a_table_that_makes_no_sense_costs_its_addresses_only(tmp_path: Path) -> None:
    (tmp_path / "sys/class/net/none0").mkdir(parents=True)
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/if_inet6").write_text("fd00 02 40 00 80 none0\n")
    found, silent = host.observe(tmp_path / "sys", tmp_path / "proc", [])
    (only,) = found.interfaces
    assert (only.name, only.addresses, only.up) == ("none0", (), False)
    assert set(silent) == {"ipv6-addresses"} and silent["ipv6-addresses"].startswith("AddressValueError")


def test_rdma_devices_with_their_ports(tmp_path: Path) -> None:
    for name, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "1: DOWN")):
        port = tmp_path / f"class/infiniband/{name}/ports/1"
        port.mkdir(parents=True)
        (port / "state").write_text(state + "\n")
        (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
        (port / "link_layer").write_text("InfiniBand\n")
    (tmp_path / "class/infiniband/half").mkdir()
    half, up, down = net.rdma(tmp_path)
    assert (up.name, up.active_ports, up.rate, up.link) == ("mlx5_0", 1, "400 Gb/sec (4X NDR)", "InfiniBand")
    assert (down.active_ports, half.active_ports, half.rate) == (0, 0, "")
    assert net.rdma(tmp_path / "none") == ()


def test_a_machine_that_says_nothing(tmp_path: Path) -> None:
    assert host.memory_bytes(tmp_path) == 0
    assert host.cpu_model(tmp_path) == os.uname().machine
    assert net.interfaces(tmp_path, net.ipv6(tmp_path)) == ()
    assert host.boot_id(tmp_path) == ""


def test_nccl_libraries_by_the_version_of_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    for name in ("libnccl.so.2.27.3", "librccl.so.1.0.70000", "libnccl-net.so", "libncclprofiler.so.1"):
        (folder / name).touch()
    (folder / "libnccl.so.2").symlink_to("libnccl.so.2.27.3")
    (folder / "libnccl.so").symlink_to("libnccl.so.2")
    found = libraries.nccl([str(tmp_path), "/does/not/exist"])
    assert found == {str(folder / "libnccl.so.2.27.3"): "2.27.3", str(folder / "librccl.so.1.0.70000"): "1.0.70000"}
    assert str(folder / "libnccl.so.2.27.3") not in libraries.nccl([LOADER])


def test_the_version_of_a_library_that_does_not_carry_it_in_its_name(tmp_path: Path) -> None:
    """As in the package nvidia-nccl: the text that the library would print is in it."""
    filler = b"\0" * ((1 << 20) - 8)  # so that the text lies across two blocks
    (tmp_path / "libnccl.so.2").write_bytes(filler + b"NCCL version 2.28.9+cuda13.0\0")
    (tmp_path / "librccl.so.1").write_bytes(b"RCCL version 2.26.6-HEAD:64f6\0")
    found = {Path(path).name: version for path, version in libraries.local_nccl([tmp_path, tmp_path / "no"]).items()}
    assert found == {"libnccl.so.2": "2.28.9", "librccl.so.1": "2.26.6"}
    (tmp_path / "libnccl.so.2").write_bytes(b"nothing")
    assert libraries.told_version(tmp_path / "libnccl.so.2") == ""
    assert libraries.told_version(tmp_path / "absent") == ""


def test_the_hip_runtime_is_found_by_its_file(tmp_path: Path) -> None:
    assert libraries.hip([tmp_path, tmp_path / "no"]) == ""
    (tmp_path / "libamdhip64.so.7").touch()
    assert libraries.hip([tmp_path / "no", tmp_path]) == str(tmp_path / "libamdhip64.so.7")
