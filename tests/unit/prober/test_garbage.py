"""Garbage in one file of the host: what reads it says so, and everything else is as it was."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from fdl_api.report import Check
from fdl_prober import checks, decide
from fdl_prober.facts import Facts, gather
from fdl_prober.observe import Observation, Observer
from fdl_prober.settings import Settings

from .stories import ALL, NOW

DATA = Path(__file__).parent / "data"
SOCKETS = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1CA9 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0
"""
FILES = {
    "sys/class/net/eth0/operstate": "up",
    "sys/class/net/eth0/speed": "25000",
    "sys/class/net/eth0/mtu": "9000",
    "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
    "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)",
    "sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand",
    "sys/fs/cgroup/cgroup.controllers": "cpu memory pids",
    "sys/fs/cgroup/memory.max": "2147483648",
    "sys/fs/cgroup/cpu.max": "50000 100000",
    "sys/fs/cgroup/pids.max": "400",
    "proc/meminfo": "MemTotal:       16384000 kB",
    "proc/cpuinfo": "model name\t: a processor",
    "proc/sys/kernel/random/boot_id": "4c0d8a3e-0000-0000-0000-000000000000",
    "proc/self/cgroup": "0::/",
    "proc/net/if_inet6": "fd000000000000000000000000000007 02 40 00 80 eth0",
    "proc/net/tcp": SOCKETS,
    "proc/net/tcp6": SOCKETS.splitlines()[0],
    "proc/driver/nvidia/version": "NVRM version: 580.65.06",
}
GARBAGE: dict[str, bytes] = {
    "no text": b"\xff\xfe\x00\x80\n\xc3",
    "nothing": b"",
    "words": "gar\u0301bage \u2028 of all; kinds\n".encode() * 3,
    "a huge number": b"9" * 5000,
    "a negative number": b"-1\n",
    "much": b"A" * (3 << 20),
}
READ_BY = {
    "sys/class/net": {"interfaces"},
    "sys/class/infiniband": {"rdma"},
    "sys/fs/cgroup": {"control-group"},
    "proc/self/cgroup": {"control-group"},
    "proc/net/if_inet6": {"ipv6-addresses"},
    "proc/net/tcp": {"ports"},
    "proc/net/tcp6": {"ports"},
}
"""Parts that may be silent for garbage in a file; in the others it is a text or a number that is not known."""


def tree(root: Path) -> Path:
    shutil.copytree(DATA / "mixed/sys", root / "sys")
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


async def look(root: Path) -> Observation:
    settings = Settings(
        node="n", driver_roots=(), sysfs_root=root / "sys", proc_root=root / "proc", dev_root=root / "dev"
    )
    own = dataclasses.replace(settings, kernel_log=root / "kmsg", ports=(7337,))
    return await Observer(own, local=True).look(simulated=False)


def facts_of(seen: Observation) -> Facts:
    values: dict[str, Any] = {"simulated": False, "variants": ALL, "cluster_known": True, "deep": {}, "local": True}
    return gather("n", seen, clock_offset_seconds=None, socket_interface="eth0", **values)


def by_name(found: tuple[Check, ...]) -> dict[str, list[Check]]:
    told: dict[str, list[Check]] = {}
    for check in found:
        told.setdefault(check.name, []).append(check)
    return told


CONCERNED = {
    "interfaces": {"interfaces", "socket-interface", "nccl-environment"},
    "ipv6-addresses": {"interfaces", "socket-interface", "nccl-environment"},
    "rdma": {"rdma"},
    "control-group": {"limits"},
    "ports": {"ports"},
}
"""Checks by the parts that they are made from."""


@pytest.mark.parametrize("kind", GARBAGE)
async def test_garbage_in_one_file_costs_what_reads_it_and_nothing_else(tmp_path: Path, kind: str) -> None:
    root = tree(tmp_path)
    clean = facts_of(await look(root))
    assert clean.seen.silent == {}
    before = by_name(checks.run(clean))
    for name in FILES:
        path = root / name
        kept = path.read_bytes()
        path.write_bytes(GARBAGE[kind])
        found = facts_of(await look(root))
        path.write_bytes(kept)
        allowed = next((parts for start, parts in READ_BY.items() if name.startswith(start)), set())
        assert set(found.seen.silent) <= allowed, (name, found.seen.silent)
        after = by_name(checks.run(found))
        told = after.pop("host-survey", [])
        assert [check.subject for check in told] == list(found.seen.silent) and all(
            check.severity == "unknown" and not check.blocking for check in told
        )
        may_differ = set().union(*(CONCERNED[part] for part in allowed))
        assert {key: after.get(key) for key in before.keys() - may_differ} == {
            key: each for key, each in before.items() if key not in may_differ
        }, name
        new = {check.reason for key in may_differ for check in after.get(key, ()) if check not in before.get(key, ())}
        assert not {"none", "missing", "no-address", "port-down", "in-use"} & new or not found.seen.silent, (name, new)
        labels = decide.desired(found, NOW)[0]
        assert labels == decide.desired(clean, NOW)[0], name


@pytest.mark.parametrize("kind", GARBAGE)
async def test_garbage_in_one_file_about_a_device_proves_nothing(tmp_path: Path, kind: str) -> None:
    """What is said of the node's devices then is less, or the same, and never something else."""
    root = tree(tmp_path)
    clean = decide.desired(facts_of(await look(root)), NOW)[0]
    files = [path for folder in ("bus/pci", "class/kfd", "module") for path in (root / "sys" / folder).rglob("*")]
    for path in files:
        if not path.is_file():
            continue
        kept = path.read_bytes()
        path.write_bytes(GARBAGE[kind])
        found = facts_of(await look(root))
        path.write_bytes(kept)
        assert set(found.seen.silent) <= {"pci"}, path
        labels = decide.desired(found, NOW)[0]
        free = {"fdl.dev/ready", "fdl.dev/count.amd"} | ({"fdl.dev/gpu-vendor"} if found.seen.silent else set())
        assert {key: value for key, value in labels.items() if key not in free}.items() <= clean.items(), path
        assert int(labels.get("fdl.dev/count.amd", 0)) <= int(clean["fdl.dev/count.amd"]), path
        if labels.keys() != clean.keys():
            assert {"unknown", "fail"} & {check.severity for check in checks.run(found)}, path
