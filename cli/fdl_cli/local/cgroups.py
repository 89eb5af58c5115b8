"""Control groups of a cluster, for cgroup v1 and v2: ``/fdl.<cluster>/<node>/{system,pods}``.

``system`` holds the node's own processes, ``pods`` is the kubelet's root and carries the node's size.
Everything here is plain file work below a root folder, so that it is tested without a kernel.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from fdl_cli.local.errors import LocalError

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 10_000
"""Period of the CPU quota in microseconds: 10 ms, so that half a core is smooth and not 50 ms of pauses."""
_V2_CONTROLLERS = ("cpuset", "cpu", "io", "memory", "hugetlb", "pids", "rdma")
_SYSTEM, _PODS = "system", "pods"


@dataclass(frozen=True)
class Hierarchies:
    """The mounted trees: one for v2, one a controller for v1 (and named ones such as ``systemd``)."""

    v2: bool
    roots: tuple[Path, ...]

    def controller(self, name: str) -> Path:
        """The tree in which a controller is set."""
        if self.v2:
            return self.roots[0]
        for root in self.roots:
            if name in root.name.split(","):
                return root
        raise LocalError(f"The cgroup controller {name} is not mounted below {ROOT}. Mount it, or boot with cgroup v2.")


def parse_mounts(mountinfo: str) -> Hierarchies:
    """Finds the trees in the text of ``/proc/self/mountinfo``.

    A v2 tree at ``/sys/fs/cgroup`` means v2. A v2 tree beside v1 trees (hybrid) has no controllers, but runc makes
    groups in it too, so it counts as one more tree.
    """
    v1: list[Path] = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        kind, path = right.split(" ")[0], Path(left.split(" ")[4])
        if kind == "cgroup2" and path == ROOT:
            return Hierarchies(True, (path,))
        if kind in ("cgroup", "cgroup2") and path.parent == ROOT and path not in v1:
            v1.append(path)
    if not v1:
        raise LocalError(
            f"No cgroups are mounted below {ROOT}: nodes cannot be limited or frozen. Mount cgroup v2 there."
        )
    return Hierarchies(False, tuple(v1))


def detect() -> Hierarchies:
    """The trees of this machine."""
    return parse_mounts(Path("/proc/self/mountinfo").read_text())


def quota(cpu: Decimal) -> int:
    """Microseconds of CPU time per :data:`PERIOD_US` for a number of cores; the kernel's least is 1000."""
    return max(1000, int(cpu * PERIOD_US))


def cluster_group(cluster: str) -> str:
    """Name of a cluster's group below the root."""
    return f"fdl.{cluster}"


def kubelet_root(cluster: str, node: str) -> str:
    """What the kubelet is told as ``cgroupRoot``."""
    return f"/{cluster_group(cluster)}/{node}/{_PODS}"


def _enable_v2(parent: Path) -> None:
    """Hands all available controllers on to the children of ``parent``."""
    available = (parent / "cgroup.controllers").read_text().split()
    wanted = [c for c in _V2_CONTROLLERS if c in available]
    control = parent / "cgroup.subtree_control"
    if set(wanted) <= set(control.read_text().split()):
        return
    request = " ".join(f"+{c}" for c in wanted)
    try:
        control.write_text(request)
    except OSError:
        # In a container the root of its cgroup namespace holds processes, and a group that holds
        # processes cannot hand controllers on: move them into a leaf first.
        leaf = parent / "fdl.init"
        leaf.mkdir(exist_ok=True)
        for pid in (parent / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):  # kernel threads stay, and some end meanwhile
                (leaf / "cgroup.procs").write_text(pid)
        control.write_text(request)


def _inherit_cpuset(root: Path, group: Path) -> None:
    """Fills the CPUs and memory nodes of a new v1 cpuset, which starts empty and then takes no process."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        value = (group.parent if group.parent != root.parent else root) / name
        (group / name).write_text(value.read_text())


def create(trees: Hierarchies, cluster: str, member: str, cpu: Decimal | None = None) -> list[Path]:
    """Makes the groups of a node (or ``control``) and returns the ``cgroup.procs`` files its processes join.

    ``cpu`` is the node's size in cores for its pods; the node's own processes are not slowed by it.
    """
    joined: list[Path] = []
    for root in trees.roots:
        top = root / cluster_group(cluster)
        node = top / member
        for group in (top, node, node / _SYSTEM, node / _PODS):
            group.mkdir(exist_ok=True)
            if not trees.v2 and "cpuset" in root.name.split(","):
                _inherit_cpuset(root, group)
        if trees.v2:
            for group in (root, top, node, node / _PODS):
                _enable_v2(group)
        joined.append(node / _SYSTEM / "cgroup.procs")
    limit_cpu(trees, cluster, member, cpu)
    return joined


def limit_cpu(trees: Hierarchies, cluster: str, member: str, cpu: Decimal | None) -> None:
    """Sets the quota of a node's pods; None takes it away."""
    set_quota(trees, trees.controller("cpu") / cluster_group(cluster) / member / _PODS, cpu)


def set_quota(trees: Hierarchies, group: Path, cpu: Decimal | None) -> None:
    """Sets the quota of a group in cores; None takes it away."""
    if trees.v2:
        value = "max" if cpu is None else str(quota(cpu))
        (group / "cpu.max").write_text(f"{value} {PERIOD_US}")
        return
    if cpu is None:
        (group / "cpu.cfs_quota_us").write_text("-1")
        return
    (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
    (group / "cpu.cfs_quota_us").write_text(str(quota(cpu)))


def freeze(trees: Hierarchies, cluster: str, member: str | None, frozen: bool) -> None:
    """Stops or continues all processes of a node, or of the whole cluster, at once."""
    base = trees.controller("freezer") / cluster_group(cluster)
    group = base if member is None else base / member
    if not group.is_dir():
        return
    if trees.v2:
        (group / "cgroup.freeze").write_text("1" if frozen else "0")
    else:
        (group / "freezer.state").write_text("FROZEN" if frozen else "THAWED")


def frozen(trees: Hierarchies, cluster: str, member: str) -> bool:
    """Whether a node is frozen."""
    group = trees.controller("freezer") / cluster_group(cluster) / member
    if trees.v2:
        path, value = group / "cgroup.freeze", "1"
    else:
        path, value = group / "freezer.self_freezing", "1"
    return path.is_file() and path.read_text().strip() == value


def _thaw_all(trees: Hierarchies, base: Path) -> None:
    name, value = ("cgroup.freeze", "0") if trees.v2 else ("freezer.state", "THAWED")
    for group in [base, *(p for p in base.rglob("*") if p.is_dir())]:
        with contextlib.suppress(OSError):
            if (group / name).is_file():
                (group / name).write_text(value)


def thaw_cluster(trees: Hierarchies, cluster: str) -> None:
    """Continues everything of a cluster: on cgroup v1 a frozen process does not even die."""
    with contextlib.suppress(LocalError):
        _thaw_all(trees, trees.controller("freezer") / cluster_group(cluster))


def groups_below(base: Path) -> list[Path]:
    """All groups of a tree, the innermost first, which is the order in which they can be removed."""
    if not base.is_dir():
        return []
    return sorted([base, *(p for p in base.rglob("*") if p.is_dir())], key=lambda p: len(p.parts), reverse=True)


def pids(trees: Hierarchies, groups: Iterable[Path]) -> set[int]:
    """Ids of all processes in groups, as this machine sees them; groups that vanish are skipped."""
    found: set[int] = set()
    for group in groups:
        with contextlib.suppress(OSError):
            found.update(int(pid) for pid in (group / "cgroup.procs").read_text().split())
    found.discard(0)
    return found


def pod_pids(trees: Hierarchies, cluster: str, node: str, pod_uid: str) -> list[int]:
    """Ids of the processes of a pod, without its sandbox's own (``pause``)."""
    base = trees.controller("memory") / cluster_group(cluster) / node / _PODS
    # The cgroupfs driver writes the id as it is, the systemd driver with underscores.
    names = {f"pod{pod_uid}", f"pod{pod_uid.replace('-', '_')}"}
    groups = [g for g in groups_below(base) if names & set(g.parts)]
    result = []
    for pid in sorted(pids(trees, groups)):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() != "pause":
                result.append(pid)
    return result


def kill_all(trees: Hierarchies, cluster: str, member: str | None = None, limit_s: float = 20.0) -> None:
    """Kills every process of a node, or of the whole cluster, and removes the groups.

    Raises:
        LocalError: processes live on or groups stay, after ``limit_s`` seconds.
    """
    suffix = cluster_group(cluster) if member is None else f"{cluster_group(cluster)}/{member}"
    deadline = time.monotonic() + limit_s
    with contextlib.suppress(LocalError):
        _thaw_all(trees, trees.controller("freezer") / suffix)
    while True:
        left = [g for root in trees.roots for g in groups_below(root / suffix)]
        alive = pids(trees, left)
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not alive:
            for group in left:
                with contextlib.suppress(OSError):
                    group.rmdir()
        if not left:
            return
        if time.monotonic() > deadline:
            raise LocalError(
                f"{len(alive)} processes in {len(left)} cgroups of {suffix} do not end: {sorted(alive)[:5]}. "
                "Look at them with `ps`, then run `fdl local down` again."
            )
        time.sleep(0.05)
