"""The native provider: control plane and nodes as processes in namespaces of this machine."""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fdl_api.labels import DEVICE_RESOURCES
from fdl_cli.local import cgroups, holders, images, network, pki, processes, programs, render, simulate, state, subnets
from fdl_cli.local.errors import LocalError
from fdl_cli.local.images import Image, NodeStore
from fdl_cli.local.kubectl import Kubectl
from fdl_cli.local.nodespec import NodeSpec
from fdl_cli.local.paths import ClusterPaths, image_store
from fdl_cli.local.programs import CONTROL
from fdl_cli.local.render import Machine, Site

Say = Callable[[str], None]


def machine() -> Machine:
    """Size of this machine as the kubelet sees it."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(os.cpu_count() or 1, memory)


class Native:
    """One native cluster. Callers hold its lock."""

    def __init__(self, paths: ClusterPaths, say: Say) -> None:
        self._paths = paths
        self._say = say

    def _site(self, record: state.Record) -> Site:
        p = self._paths
        return Site(record.name, record.subnets, Path(record.bin), p.pki, p.logs, p.root)

    def kubectl(self, record: state.Record) -> Kubectl:
        """The cluster's kubectl."""
        return Kubectl(Path(record.bin) / "kubectl", self._paths.kubeconfig)

    def alive(self, record: state.Record) -> bool:
        """Whether the control plane runs."""
        holder = record.holders.get(CONTROL)
        return holder is not None and processes.alive(holder.pid, holder.started)

    def control_pid(self, record: state.Record) -> int:
        """Id of the control plane's first process.

        Raises:
            LocalError: it does not run.
        """
        if not self.alive(record):
            raise LocalError(
                f"The control plane of {record.name} does not run. Start it: fdl local up --name {record.name}."
            )
        return record.holders[CONTROL].pid

    # -- up ------------------------------------------------------------------------------------------------------

    def start(self, bin_folder: Path, nodes: Sequence[NodeSpec], archives: Sequence[Path]) -> state.Record:
        """Makes a new cluster; whatever was there of that name has been cleared before."""
        record = state.Record(self._paths.name, "native", bin=str(bin_folder), nodes=list(nodes))
        with state.lock("networks", self._say):
            record.block = subnets.choose(network.taken_networks() + self._recorded_networks()).block
            state.save(self._paths, record)
        site = self._site(record)
        self._make_files(site, record)
        self._say("Starting the control plane")
        control = self._launch(site, record, CONTROL, programs.control_programs(site), holders.control_binds(site))
        network.lay_control(record.name, record.subnets, record.holders[CONTROL].pid)
        holders.let_go(control)
        loaded = self._start_nodes(site, record, [str(n.name) for n in nodes], archives)
        record.phase = state.RUNNING
        state.save(self._paths, record)
        self._say(f"Ready: {len(nodes)} nodes, {len(loaded)} images")
        return record

    def add(self, record: state.Record, nodes: Sequence[NodeSpec], archives: Sequence[Path]) -> None:
        """Adds nodes to a running cluster."""
        site = self._site(record)
        authority = pki.Authority.load(site.pki)
        for node in nodes:
            record.nodes.append(node)
            self._issue_node(site, record, authority, node)
        state.save(self._paths, record)
        self._start_nodes(site, record, [str(n.name) for n in nodes], archives)

    def _recorded_networks(self) -> list[str]:
        """Networks of clusters that are just starting and have no route yet."""
        found = []
        for name in state.clusters():
            if name != self._paths.name and (other := state.load(ClusterPaths(name))) is not None and other.block:
                found.append(other.subnets.whole)
        return found

    def _make_files(self, site: Site, record: state.Record) -> None:
        for folder in (site.logs, site.root / "etcd", site.root / "volumes", image_store()):
            folder.mkdir(parents=True, exist_ok=True)
        authority = pki.Authority.create(site.pki)
        net = record.subnets
        inside = "https://127.0.0.1:6443"
        for subject in pki.control_subjects((net.control, net.api, net.kubernetes_service)):
            authority.issue(subject)
            # Processes beside the API server reach it by loopback; kube-proxy and kube-router run in nodes.
            server = f"https://{net.control}:6443" if subject.file in ("proxy", "router") else inside
            if subject.file not in ("apiserver", "kubelet-client", "admin"):
                self._write_kubeconfig(site, subject.file, server)
        for node in record.nodes:
            self._issue_node(site, record, authority, node)
        admin = holders.kubeconfig_of(site, "admin", f"https://{net.api}:6443", f"fdl-{record.name}")
        self._paths.kubeconfig.touch(mode=0o600)
        self._paths.kubeconfig.write_text(admin)
        files = {"audit-policy.yaml": render.AUDIT_POLICY, "Corefile": render.corefile(site.pki / "dns.kubeconfig")}
        holders.prepare(site, CONTROL, files)

    def _write_kubeconfig(self, site: Site, name: str, server: str) -> None:
        path = site.pki / f"{name}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(holders.kubeconfig_of(site, name, server, name))

    def _issue_node(self, site: Site, record: state.Record, authority: pki.Authority, node: NodeSpec) -> None:
        name = str(node.name)
        authority.issue(pki.node_subject(name, record.subnets.node(record.index(name))))
        self._write_kubeconfig(site, f"node-{name}", f"https://{record.subnets.control}:6443")

    def _launch(
        self,
        site: Site,
        record: state.Record,
        member: str,
        run: list[programs.Program],
        binds: list[dict[str, object]],
    ) -> Path:
        folder = self._paths.holder(member)
        cpu = None if member == CONTROL else record.nodes[record.index(member)].cpu
        procs = cgroups.create(cgroups.detect(), record.name, member, cpu)
        described = holders.description(site, member, run, procs=procs, binds=binds)
        record.holders[member] = holders.launch(site, folder, described)
        state.save(self._paths, record)
        return folder

    def _power(self, site: Site, record: state.Record, name: str) -> None:
        """Starts a node's processes and links it."""
        index = record.index(name)
        node = record.nodes[index]
        folder = holders.prepare(site, name, holders.node_files(site, node, index, machine()))
        library = site.bin / "libnvidia-ml.so.1"
        simulate.write(folder / "conf" / "driver", node.accelerators, name, library, machine().cores)
        run = programs.node_programs(site, name, record.subnets.node(index))
        self._launch(site, record, name, run, holders.node_binds(folder))
        network.lay_node(record.subnets, index, self.control_pid(record), record.holders[name].pid)
        holders.let_go(folder)

    def _start_nodes(
        self,
        site: Site,
        record: state.Record,
        names: Sequence[str],
        archives: Sequence[Path],
    ) -> list[Image]:
        self._say(f"Starting {len(names)} nodes: {', '.join(names)}")
        for name in names:
            self._power(site, record, name)
        with ThreadPoolExecutor(max_workers=2) as pool:
            loading = pool.submit(self._load, site, record, names, archives)
            kubectl = self.kubectl(record)
            kubectl.wait_ready(site.logs / CONTROL / "kube-apiserver.log")
            kubectl.apply(render.addons(record.subnets) + [self._node_object(record, name) for name in names])
            loaded = loading.result()
        self._say("Waiting for the nodes to be ready")
        kubectl.wait_nodes(names, site.logs)
        for name in names:
            self._wait_devices(record, name)
        return loaded

    def _wait_devices(self, record: state.Record, name: str) -> None:
        """Waits until a node offers its simulated devices, which its device plugin registers on its own."""
        wanted = {DEVICE_RESOURCES[a.vendor]: a.count for a in record.nodes[record.index(name)].accelerators}
        if wanted:
            self.kubectl(record).wait_allocatable(name, wanted)

    def _node_object(self, record: state.Record, name: str) -> dict[str, object]:
        index = record.index(name)
        return render.node_object(record.nodes[index], record.subnets.node_pods(index))

    # -- images --------------------------------------------------------------------------------------------------

    def _stores(self, site: Site, record: state.Record, names: Sequence[str]) -> list[NodeStore]:
        stores = []
        for name in names:
            log = site.logs / name / "containerd.log"
            socket = holders.wait_for_socket(record.holders[name], render.CONTAINERD_SOCKET, name, log)
            stores.append(NodeStore(name, socket, self._paths.holder(name) / "var/lib/containerd"))
        return stores

    def _load(self, site: Site, record: state.Record, names: Sequence[str], archives: Sequence[Path]) -> list[Image]:
        pause = site.root / "pause.tar"
        if not pause.exists():
            images.write_archive(pause, render.PAUSE_IMAGE, {"pause": site.bin / "pause"}, ["/pause"])
        program = site.bin / "fdl-images"
        found = images.unpack(program, image_store(), [pause, *archives])
        images.link(program, image_store(), self._stores(site, record, names), found)
        return found[1:]

    def load(self, record: state.Record, archives: Sequence[Path]) -> tuple[list[Image], dict[str, int]]:
        """Loads archives into all running nodes; returns the images and how many were new on each node."""
        site = self._site(record)
        program = site.bin / "fdl-images"
        found = images.unpack(program, image_store(), archives)
        names = [str(n.name) for n in record.nodes if n.name not in record.stopped]
        return found, images.link(program, image_store(), self._stores(site, record, names), found)

    # -- faults --------------------------------------------------------------------------------------------------

    def stop_node(self, record: state.Record, name: str) -> None:
        """A power cut: every process of the node dies at once; its disk stays."""
        record.index(name)
        holder = record.holders.pop(name, None)
        holders.end(cgroups.detect(), record.name, name, holder)
        holders.forget_power(self._paths.holder(name))
        if name not in record.stopped:
            record.stopped.append(name)
        state.save(self._paths, record)

    def start_node(self, record: state.Record, name: str) -> None:
        """Brings a stopped node back and waits until it is Ready."""
        record.index(name)
        holder = record.holders.get(name)
        if holder is not None and processes.alive(holder.pid, holder.started):
            return
        holders.end(cgroups.detect(), record.name, name, None)
        site = self._site(record)
        since = time.time()
        self._power(site, record, name)
        archives: list[Path] = []
        self._load(site, record, [name], archives)
        if name in record.stopped:
            record.stopped.remove(name)
        state.save(self._paths, record)
        self._wait_heartbeat(record, name, since)
        self._wait_devices(record, name)

    def _wait_heartbeat(self, record: state.Record, name: str, since: float, limit_s: float = 90.0) -> None:
        """Waits for a Ready that is newer than the start: the old one stands until the cluster notices."""
        deadline = time.monotonic() + limit_s
        kubectl = self.kubectl(record)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since))
        while True:
            conditions = kubectl.json("get", "node", name)["status"].get("conditions", [])
            if any(
                c["type"] == "Ready" and c["status"] == "True" and c["lastHeartbeatTime"] > stamp for c in conditions
            ):
                return
            if time.monotonic() > deadline:
                raise LocalError(f"{name} is not Ready {limit_s:.0f} s after its start: see {self._paths.logs}/{name}.")
            time.sleep(0.3)

    def freeze_node(self, record: state.Record, name: str, frozen: bool) -> None:
        """Stops (or continues) every process of a node where it stands."""
        record.index(name)
        cgroups.freeze(cgroups.detect(), record.name, name, frozen)

    def cut_node(self, record: state.Record, name: str, cut: bool) -> None:
        """Drops (or restores) all traffic of a node, while its pods run on."""
        network.set_link(record.index(name), self.control_pid(record), up=not cut)

    def set_node(self, record: state.Record, changed: NodeSpec) -> None:
        """Changes the simulated accelerators of a running node."""
        index = record.index(str(changed.name))
        old = record.nodes[index]
        record.nodes[index] = NodeSpec(old.name, old.cpu, old.memory, changed.accelerators)
        state.save(self._paths, record)
        root = self._paths.holder(str(old.name)) / "conf" / "driver"
        library = Path(record.bin) / "libnvidia-ml.so.1"
        simulate.write(root, changed.accelerators, str(old.name), library, machine().cores)
        kubectl = self.kubectl(record)
        kubectl.apply([self._node_object(record, str(old.name))])
        present = {DEVICE_RESOURCES[a.vendor]: a.count for a in changed.accelerators}
        kubectl.wait_allocatable(str(old.name), dict.fromkeys(DEVICE_RESOURCES.values(), 0) | present)

    def dead_nodes(self, record: state.Record) -> list[str]:
        """Nodes that do not run although nobody stopped them."""
        names = [str(n.name) for n in record.nodes]
        return [n for n in names if n not in record.stopped and self.condition(record, n) == "stopped"]

    def condition(self, record: state.Record, name: str) -> str:
        """``stopped``, ``frozen``, ``cut`` or ``running``."""
        holder = record.holders.get(name)
        if holder is None or not processes.alive(holder.pid, holder.started):
            return "stopped"
        if cgroups.frozen(cgroups.detect(), record.name, name):
            return "frozen"
        return "running" if network.link_is_up(record.index(name), self.control_pid(record)) else "cut"

    # -- down ----------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Removes everything of the cluster, whatever state it is in.

        Raises:
            LocalError: a process or a cgroup stays.
        """
        name, root = self._paths.name, self._paths.root
        trees = cgroups.detect()
        base = cgroups.cluster_group(name)
        with_groups = any((tree / base).is_dir() for tree in trees.roots)
        if with_groups:
            cgroups.thaw_cluster(trees, name)
        # Those that were killed between their birth and their entry into a cgroup or into the record.
        for pid in processes.helpers(root):
            if (started := processes.start_time(pid)) is not None and not processes.kill(pid, started):
                raise LocalError(f"Process {pid} of {name} does not end: see `ps {pid}`, then run down again.")
        if with_groups:
            cgroups.kill_all(trees, name)
        network.remove_host_link(name)
        if root.exists():
            shutil.rmtree(root)
