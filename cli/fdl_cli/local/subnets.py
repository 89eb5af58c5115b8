"""Addresses of a cluster: one /16 each, so that clusters side by side never share one."""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from fdl_cli.local.errors import LocalError

# Blocks of 10/8 that neither kind, Docker, minikube nor common VPNs take by default.
BLOCKS = range(201, 251)


@dataclass(frozen=True)
class Subnets:
    """The plan inside ``10.<block>.0.0/16``: nodes, the link to the machine, services, pods."""

    block: int

    @property
    def whole(self) -> str:
        """Everything of this cluster, as the machine routes it."""
        return f"10.{self.block}.0.0/16"

    @property
    def control(self) -> str:
        """The control plane's address among the nodes: API server and every node's gateway."""
        return f"10.{self.block}.0.1"

    @property
    def host(self) -> str:
        """The machine's end of its link to the control plane."""
        return f"10.{self.block}.1.1"

    @property
    def api(self) -> str:
        """The control plane's end of that link: where people reach the API server."""
        return f"10.{self.block}.1.2"

    @property
    def services(self) -> str:
        """Range of ClusterIPs."""
        return f"10.{self.block}.16.0/20"

    @property
    def kubernetes_service(self) -> str:
        """ClusterIP of the service ``kubernetes``: always the range's first."""
        return f"10.{self.block}.16.1"

    @property
    def dns_service(self) -> str:
        """ClusterIP of the service ``kube-dns``."""
        return f"10.{self.block}.16.10"

    @property
    def pods(self) -> str:
        """Range of all pods; every node has a /24 of it."""
        return f"10.{self.block}.128.0/17"

    def node(self, index: int) -> str:
        """Address of the node with this index, from 0."""
        return f"10.{self.block}.0.{11 + index}"

    def node_pods(self, index: int) -> str:
        """Range of the pods of the node with this index, from 0."""
        return f"10.{self.block}.{128 + index}.0/24"


def choose(taken: Iterable[str]) -> Subnets:
    """The first plan whose block overlaps none of the networks ``taken`` (in CIDR form)."""
    networks = [ipaddress.ip_network(t, strict=False) for t in taken]
    # The default route covers everything and is nobody's.
    used = [n for n in networks if n.version == 4 and n.prefixlen > 0]
    for block in BLOCKS:
        plan = Subnets(block)
        if not any(ipaddress.ip_network(plan.whole).overlaps(n) for n in used):
            return plan
    raise LocalError(
        f"No free network is left among 10.{BLOCKS.start}.0.0/16 to 10.{BLOCKS.stop - 1}.0.0/16: "
        "remove a cluster by `fdl local down --name NAME`, or the routes that cover them (`ip route`)."
    )
