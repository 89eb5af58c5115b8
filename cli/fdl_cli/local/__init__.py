"""A real Kubernetes on this machine: by kind where a container engine answers, else natively."""

from fdl_cli.local.cluster import Cluster
from fdl_cli.local.errors import LocalError
from fdl_cli.local.nodespec import NodeSpec

__all__ = ["Cluster", "LocalError", "NodeSpec"]
