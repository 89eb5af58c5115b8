"""Control groups, against folders that look like the kernel's."""

from decimal import Decimal
from pathlib import Path

import pytest

from fdl_cli.local import cgroups
from fdl_cli.local.cgroups import Hierarchies
from fdl_cli.local.errors import LocalError

V1 = """22 27 0:21 / /proc rw - proc proc rw
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime shared:9 - cgroup cgroup rw,cpuset
36 31 0:34 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer
40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def test_v1_trees_are_found_with_the_hybrid_one() -> None:
    trees = cgroups.parse_mounts(V1)
    assert not trees.v2
    assert [r.name for r in trees.roots] == ["cpu,cpuacct", "cpuset", "freezer", "systemd", "unified"]
    assert trees.controller("cpu").name == "cpu,cpuacct"
    with pytest.raises(LocalError, match="controller memory is not mounted"):
        trees.controller("memory")


def test_v2_is_one_tree_for_all_controllers() -> None:
    trees = cgroups.parse_mounts(V2)
    assert trees == Hierarchies(True, (Path("/sys/fs/cgroup"),))
    assert trees.controller("memory") == trees.controller("freezer") == Path("/sys/fs/cgroup")


def test_no_tree_is_refused() -> None:
    with pytest.raises(LocalError, match="No cgroups are mounted"):
        cgroups.parse_mounts("22 27 0:21 / /proc rw - proc proc rw\n")


@pytest.mark.parametrize(("cpu", "us"), [("0.5", 5000), ("1", 10_000), ("2", 20_000), ("0.05", 1000), ("0.333", 3330)])
def test_quota_is_per_ten_milliseconds_and_never_below_the_kernels_least(cpu: str, us: int) -> None:
    assert cgroups.quota(Decimal(cpu)) == us


def v1(root: Path) -> Hierarchies:
    trees = tuple(root / name for name in ("cpu", "cpuset", "freezer", "memory"))
    for tree in trees:
        tree.mkdir()
    (root / "cpuset/cpuset.cpus").write_text("0-1\n")
    (root / "cpuset/cpuset.mems").write_text("0\n")
    return Hierarchies(False, trees)


def test_v1_groups_have_cpus_memory_nodes_and_the_nodes_size(tmp_path: Path) -> None:
    trees = v1(tmp_path)
    procs = cgroups.create(trees, "c", "n", Decimal("0.5"))
    assert procs == [tree / "fdl.c/n/system/cgroup.procs" for tree in trees.roots]
    for group in ("fdl.c", "fdl.c/n", "fdl.c/n/system", "fdl.c/n/pods"):
        assert (tmp_path / "cpuset" / group / "cpuset.cpus").read_text() == "0-1\n"
        assert (tmp_path / "cpuset" / group / "cpuset.mems").read_text() == "0\n"
    assert (tmp_path / "cpu/fdl.c/n/pods/cpu.cfs_period_us").read_text() == "10000"
    assert (tmp_path / "cpu/fdl.c/n/pods/cpu.cfs_quota_us").read_text() == "5000"
    assert not (tmp_path / "cpu/fdl.c/n/system/cpu.cfs_quota_us").exists()


def v2(root: Path, available: str = "cpuset cpu io memory pids misc") -> Hierarchies:
    # The kernel makes these files in every new group; here they are made beforehand.
    for group in ("", "fdl.c", "fdl.c/n", "fdl.c/n/pods"):
        folder = root / group
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.controllers").write_text(available)
        (folder / "cgroup.subtree_control").write_text("")
    return Hierarchies(True, (root,))


def test_v2_controllers_are_handed_down_to_the_pods(tmp_path: Path) -> None:
    procs = cgroups.create(v2(tmp_path), "c", "n", Decimal("0.5"))
    assert procs == [tmp_path / "fdl.c/n/system/cgroup.procs"]
    for group in ("", "fdl.c", "fdl.c/n", "fdl.c/n/pods"):
        assert (tmp_path / group / "cgroup.subtree_control").read_text() == "+cpuset +cpu +io +memory +pids"
    assert (tmp_path / "fdl.c/n/pods/cpu.max").read_text() == "5000 10000"


def test_v2_controllers_that_are_on_are_left_alone(tmp_path: Path) -> None:
    trees = v2(tmp_path, "cpu memory")
    (tmp_path / "cgroup.subtree_control").write_text("memory cpu\n")
    cgroups.create(trees, "c", "n")
    assert (tmp_path / "cgroup.subtree_control").read_text() == "memory cpu\n"
    assert (tmp_path / "fdl.c/n/pods/cpu.max").read_text() == "max 10000"


def test_the_kubelet_is_told_the_group_of_the_pods() -> None:
    assert cgroups.kubelet_root("c", "n") == "/fdl.c/n/pods"


def test_freezing_is_written_where_each_version_wants_it(tmp_path: Path) -> None:
    for version in ("1", "2"):
        (tmp_path / version).mkdir()
    old = v1(tmp_path / "1")
    cgroups.create(old, "c", "n")
    cgroups.freeze(old, "c", "n", frozen=True)
    assert (tmp_path / "1/freezer/fdl.c/n/freezer.state").read_text() == "FROZEN"
    new = v2(tmp_path / "2")
    cgroups.create(new, "c", "n")
    cgroups.freeze(new, "c", "n", frozen=True)
    assert (tmp_path / "2/fdl.c/n/cgroup.freeze").read_text() == "1"
    assert cgroups.frozen(new, "c", "n")
    cgroups.freeze(new, "c", "n", frozen=False)
    assert not cgroups.frozen(new, "c", "n")
    cgroups.freeze(new, "c", "gone", frozen=True)


def test_groups_come_innermost_first(tmp_path: Path) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    assert [p.name for p in cgroups.groups_below(tmp_path / "a")] == ["c", "b", "a"]
    assert cgroups.groups_below(tmp_path / "none") == []
