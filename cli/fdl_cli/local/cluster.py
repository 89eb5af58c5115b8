"""A local cluster as a Python object: what the ``fdl local`` commands and the end-to-end tests use."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fdl_cli.local import build as building
from fdl_cli.local import cgroups, kind, native, nodespec, state, system
from fdl_cli.local.errors import LocalError
from fdl_cli.local.images import Image
from fdl_cli.local.kubectl import Kubectl
from fdl_cli.local.nodespec import NodeSpec
from fdl_cli.local.paths import ClusterPaths

PROVIDERS = ("auto", "kind", "native")


def _silent(_: str) -> None:
    return


def _no_progress(_done: int, _total: int, _what: str) -> None:
    return


@dataclass(frozen=True)
class NodeStatus:
    """A node as ``status`` shows it: ``condition`` is running, stopped, frozen or cut; ``ready`` the cluster's view."""

    spec: NodeSpec
    condition: str
    ready: bool
    cpu: str
    memory: str


class Cluster:
    """A cluster by name, running or not.

    ``say`` hears sentences about what is going on, ``report`` (done, total, what) hears of the build.
    All methods raise :class:`LocalError` with a sentence for a person.
    """

    def __init__(
        self,
        name: str = "fdl",
        say: Callable[[str], None] = _silent,
        report: building.Report = _no_progress,
    ) -> None:
        self.name = nodespec.check_cluster_name(name)
        self.paths = ClusterPaths(name)
        self._say = say
        self._report = report
        self._native = native.Native(self.paths, say)

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def kubeconfig(self) -> Path:
        """Path of the administrator's kubeconfig."""
        return self.paths.kubeconfig

    @property
    def audit_log(self) -> Path:
        """The API server's audit log (native provider), one JSON line a request."""
        return self.paths.audit_log

    @property
    def running(self) -> bool:
        """Whether the cluster runs."""
        record = state.load(self.paths)
        if record is None or record.phase != state.RUNNING:
            return False
        return record.provider == "kind" or self._native.alive(record)

    @property
    def node_names(self) -> list[str]:
        """Names of all nodes, stopped ones included."""
        record = state.require(self.paths)
        if record.provider == "kind":
            return [n["metadata"]["name"] for n in self.kubectl().json("get", "nodes")["items"]]
        return [str(n.name) for n in record.nodes]

    @property
    def bin(self) -> Path:
        """Folder of the programs that the cluster runs (``kubectl``, ``helm``, ``ctr``, ...)."""
        record = state.load(self.paths)
        if record is not None and Path(record.bin).is_dir() and record.bin:
            return Path(record.bin)
        found = building.find_bin() or building.find_bin(clients_only=True)
        if found is None:
            raise LocalError("The cluster's programs are not built yet. Build them: fdl local build.")
        return found

    def kubectl(self) -> Kubectl:
        """kubectl with the administrator's rights."""
        state.require(self.paths)
        return Kubectl(self.bin / "kubectl", self.kubeconfig)

    # -- life ----------------------------------------------------------------------------------------------------

    def build(self) -> Path:
        """Builds the native cluster's programs if they are not in the cache; returns their folder."""
        return building.build(self._report, self._say)

    def up(
        self,
        nodes: Sequence[NodeSpec] = (),
        count: int | None = None,
        provider: str = "auto",
        images: Sequence[Path] = (),
    ) -> bool:
        """Starts the cluster with ``nodes`` (and plain ones up to ``count``), loads image archives, waits for Ready.

        A running cluster is left as it is, but gets the nodes and images it lacks, and nodes that died (not those
        that were stopped) are started again. Remains of a crash are
        cleared first. Returns whether the cluster was started.
        """
        wanted = nodespec.plan_nodes(tuple(nodes), count)
        archives = [p.absolute() for p in images]
        with state.lock(self.name, self._say):
            record = state.load(self.paths)
            if record is not None and self.running:
                # Without an explicit wish a running cluster has the right size.
                self._grow(record, wanted if nodes or count is not None else (), archives)
                return False
            if record is not None and record.provider == "kind":
                self._kind(record).clear()
            engine = None if provider == "native" else kind.usable()
            if provider == "kind" and engine is None:
                raise LocalError(
                    "No Docker or Podman engine answers, or kind is not installed, or its node image cannot be "
                    "pulled. Start the engine, or use --provider native."
                )
            if engine is not None and (provider == "kind" or not _needs_native(wanted)):
                self._up_kind(engine, wanted, archives)
            else:
                self._up_native(wanted, archives)
            return True

    def _kind(self, record: state.Record) -> kind.Kind:
        engine = kind.find_engine()
        if engine is None:
            raise LocalError(f"{record.name} was made by kind, but no container engine answers. Start the engine.")
        return kind.Kind(self.paths, engine, self._say)

    def _up_kind(self, engine: str, wanted: Sequence[NodeSpec], archives: Sequence[Path]) -> None:
        tools = building.build(self._report, self._say, clients_only=True)
        record = state.Record(self.name, "kind", bin=str(tools), nodes=list(wanted))
        state.save(self.paths, record)
        kind.Kind(self.paths, engine, self._say).start(tools, wanted, archives)
        record.phase = state.RUNNING
        state.save(self.paths, record)

    def _up_native(self, wanted: Sequence[NodeSpec], archives: Sequence[Path]) -> None:
        system.ensure_root()
        size = native.machine()
        nodespec.check_fits(tuple(wanted), size.cores, size.memory)
        system.ensure(build=False, say=self._say)
        tools = self.build()
        if self.paths.root.exists():
            self._say(f"Clearing the remains of an earlier {self.name}")
        self._native.clear()
        self._native.start(tools, wanted, archives)

    def _grow(self, record: state.Record, wanted: Sequence[NodeSpec], archives: Sequence[Path]) -> None:
        have = {n.name for n in record.nodes}
        missing = [n for n in wanted if n.name not in have]
        if record.provider == "kind":
            if missing:
                raise LocalError("kind cannot add nodes to a running cluster. Run `fdl local down`, then up again.")
            self._kind(record).load(archives)
            return
        if missing:
            size = native.machine()
            nodespec.check_fits(tuple(missing), size.cores, size.memory)
            self._native.add(record, missing, [])
        dead = self._native.dead_nodes(record)
        for name in dead:
            self._say(f"{name} had died: starting it again")
            self._native.start_node(record, name)
        if archives:
            self._native.load(record, archives)
        if not missing and not dead:
            self._say(f"The cluster {self.name} is running already")

    def down(self) -> bool:
        """Removes the cluster and everything that a crashed ``up`` may have left. Returns whether there was any."""
        with state.lock(self.name, self._say):
            try:
                record = state.load(self.paths)
            except LocalError:
                record = None  # an unreadable record names nothing; all else is found without it
            existed = self.paths.root.exists()
            if record is not None and record.provider == "kind":
                self._kind(record).clear()
                return True
            system.ensure_root()
            self._native.clear()
            return existed

    def load(self, archives: Sequence[Path]) -> tuple[list[Image], dict[str, int]]:
        """Loads image archives into all nodes; returns the images and how many were new on each node."""
        with state.lock(self.name, self._say):
            record = state.require(self.paths)
            paths = [p.absolute() for p in archives]
            if record.provider == "kind":
                self._kind(record).load(paths)
                return [], {}
            return self._native.load(record, paths)

    # -- faults --------------------------------------------------------------------------------------------------

    def _native_record(self) -> state.Record:
        record = state.require(self.paths)
        if record.provider != "native":
            raise LocalError(f"{self.name} was made by kind, whose nodes cannot be stopped or cut by fdl. Use native.")
        return record

    def node_stop(self, name: str) -> None:
        """Cuts a node's power: kubelet, containerd and all pods die at once."""
        with state.lock(self.name, self._say):
            self._native.stop_node(self._native_record(), name)

    def node_start(self, name: str) -> None:
        """Brings a stopped node back and waits until it is Ready."""
        with state.lock(self.name, self._say):
            self._native.start_node(self._native_record(), name)

    def node_freeze(self, name: str) -> None:
        """Stops every process of a node where it stands."""
        self._native.freeze_node(self._native_record(), name, frozen=True)

    def node_thaw(self, name: str) -> None:
        """Lets a frozen node go on."""
        self._native.freeze_node(self._native_record(), name, frozen=False)

    def node_cut(self, name: str) -> None:
        """Drops all traffic of a node, both ways, while its pods run on."""
        self._native.cut_node(self._native_record(), name, cut=True)

    def node_heal(self, name: str) -> None:
        """Restores a cut node's traffic."""
        self._native.cut_node(self._native_record(), name, cut=False)

    def node_set(self, spec: NodeSpec) -> None:
        """Changes the simulated accelerators of a running node to those of ``spec``."""
        with state.lock(self.name, self._say):
            self._native.set_node(self._native_record(), spec)

    def node_pids(self, namespace: str, pod: str) -> list[int]:
        """Ids, on this machine, of a pod's processes without its sandbox's; empty if it has none.

        A pod that is not there has none either: a run's status names a successor before its pod is created.
        """
        record = self._native_record()
        found = self.kubectl().find("pod", pod, "-n", namespace)
        node = found["spec"].get("nodeName") if found is not None else None
        if found is None or node is None:
            return []
        # The kubelet names a static pod's group by another id; such pods do not occur here.
        return cgroups.pod_pids(cgroups.detect(), record.name, node, found["metadata"]["uid"])

    def node_path(self, node: str, path: str) -> Path:
        """A path of a running node's root, as this machine reaches it."""
        record = self._native_record()
        record.index(node)
        if (holder := record.holders.get(node)) is None:
            raise LocalError(f"{node} is stopped. Start it: fdl local node start {node} --name {self.name}.")
        return Path(f"/proc/{holder.pid}/root") / path.lstrip("/")

    def status(self) -> list[NodeStatus]:
        """All nodes, with what the cluster thinks of them."""
        record = state.require(self.paths)
        seen = {n["metadata"]["name"]: n for n in self.kubectl().json("get", "nodes")["items"]}
        ready = self.kubectl().ready_nodes()
        result = []
        for node in record.nodes if record.provider == "native" else [NodeSpec(name) for name in seen]:
            size = seen.get(str(node.name), {}).get("status", {}).get("allocatable", {})
            condition = self._native.condition(record, str(node.name)) if record.provider == "native" else "running"
            result.append(
                NodeStatus(node, condition, node.name in ready, size.get("cpu", "-"), size.get("memory", "-"))
            )
        return result


def _needs_native(nodes: Sequence[NodeSpec]) -> bool:
    return any(n.cpu is not None or n.memory is not None or n.simulated for n in nodes)
