"""Where things lie: the cache (shared, keyed by content) and the state (one folder a cluster)."""

import os
from dataclasses import dataclass
from pathlib import Path

from fdl_cli.local.errors import LocalError

STATE_ROOT = Path("/var/lib/fdl/local")
LOCK_ROOT = Path("/run/lock")


def cache_root() -> Path:
    """``$FDL_CACHE``, else ``$XDG_CACHE_HOME/fdl``, else ``~/.cache/fdl``."""
    if given := os.environ.get("FDL_CACHE"):
        return Path(given).absolute()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base).absolute() / "fdl"
    return Path.home() / ".cache" / "fdl"


def tools_source() -> Path:
    """The folder ``tools/cluster`` of the source checkout that this package runs from."""
    source = Path(__file__).resolve().parents[3] / "tools" / "cluster"
    if not (source / "kube" / "go.mod").is_file():
        raise LocalError(
            f"{source} does not exist: the native cluster is built from a source checkout of fdl. "
            "Install fdl from a clone with `pip install -e .`, or use --provider kind."
        )
    return source


def image_store() -> Path:
    """Unpacked image layers, shared by the nodes of all clusters."""
    return cache_root() / "image-layers"


@dataclass(frozen=True)
class ClusterPaths:
    """Files of one cluster."""

    name: str

    @property
    def root(self) -> Path:
        """Everything of the cluster; removed by ``down``."""
        return STATE_ROOT / self.name

    @property
    def record(self) -> Path:
        """What the cluster consists of (JSON)."""
        return self.root / "cluster.json"

    @property
    def pki(self) -> Path:
        """Certificates, keys and the components' kubeconfigs."""
        return self.root / "pki"

    @property
    def logs(self) -> Path:
        """Logs of all processes, and the API server's audit log."""
        return self.root / "log"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig; holds its certificates inline."""
        return self.root / "kubeconfig"

    @property
    def audit_log(self) -> Path:
        """One JSON line for each request that the API server answered."""
        return self.logs / "audit.log"

    @property
    def volumes(self) -> Path:
        """Folders of dynamically made volumes; every node sees them at this path."""
        return self.root / "volumes"

    def holder(self, member: str) -> Path:
        """Files of one node, or of ``control``."""
        return self.root / "members" / member
