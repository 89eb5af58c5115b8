"""What is built from ``tools/cluster``: one part per Go module, each cached on its own."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

# Strips symbols: the binaries shrink by a third and link faster.
_LINK = "-s -w"


@dataclass(frozen=True)
class Program:
    """One program: its package (or C file) and the path of the binary below ``bin``."""

    output: str
    package: str
    tags: str = ""
    static: bool = False
    """Linked without the C library, so that it runs in an empty image."""


@dataclass(frozen=True)
class Part:
    """The programs of one folder of ``tools/cluster``."""

    folder: str
    programs: tuple[Program, ...]
    language: str = "go"


def _kube(name: str) -> Program:
    return Program(name, f"k8s.io/kubernetes/cmd/{name}")


def _cni(name: str, kind: str) -> Program:
    return Program(f"cni/{name}", f"github.com/containernetworking/plugins/plugins/{kind}/{name}")


def _containerd(name: str) -> Program:
    return Program(name, f"github.com/containerd/containerd/v2/cmd/{name}")


# The small ones first, so that a missing compiler or library shows at once.
PARTS: tuple[Part, ...] = (
    Part("pause", (Program("pause", "pause.c", static=True),), "c"),
    Part("fake-nvml", (Program("libnvidia-ml.so.1", "nvml.c"),), "c"),
    Part("node", (Program("fdl-node", "."),)),
    Part("runc", (Program("runc", "github.com/opencontainers/runc", tags="seccomp"),)),
    Part("cni", (_cni("host-local", "ipam"), _cni("ptp", "main"), _cni("loopback", "main"), _cni("portmap", "meta"))),
    Part("etcd", (Program("etcd", "go.etcd.io/etcd/server/v3"),)),
    Part(
        "containerd",
        (
            _containerd("containerd"),
            _containerd("containerd-shim-runc-v2"),
            _containerd("ctr"),
            Program("fdl-images", "./fdl-images"),
        ),
    ),
    Part("coredns", (Program("coredns", "."),)),
    Part("provisioner", (Program("hostpath-provisioner", ".", static=True),)),
    Part("kube-router", (Program("kube-router", "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"),)),
    Part("helm", (Program("helm", "helm.sh/helm/v4/cmd/helm"),)),
    Part(
        "kube",
        (
            _kube("kubectl"),
            _kube("kube-scheduler"),
            _kube("kube-proxy"),
            _kube("kube-controller-manager"),
            _kube("kube-apiserver"),
            _kube("kubelet"),
            Program("fdl-device-plugin", "./fdl-device-plugin"),
        ),
    ),
)

CLIENTS = ("kubectl", "helm", "hostpath-provisioner")
"""Programs that a cluster made by kind needs too."""


def kubernetes_version(go_mod: str) -> str:
    """The pinned Kubernetes version, such as ``v1.37.2``, of the text of ``kube/go.mod``."""
    match = re.search(r"^\s*(?:require\s+)?k8s\.io/kubernetes (v\d+\.\d+\.\d+)", go_mod, re.MULTILINE)
    if match is None:
        raise ValueError("kube/go.mod does not require k8s.io/kubernetes")
    return match[1]


def link_flags(part: Part, go_mod: str) -> str:
    """Linker flags; Kubernetes programs only know their version if told at link time."""
    flags = [_LINK]
    if part.folder == "kube":
        version, package = kubernetes_version(go_mod), "k8s.io/component-base/version"
        major, minor, _ = version[1:].split(".")
        values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
        flags += [f"-X {package}.{key}={value}" for key, value in values.items()]
    return " ".join(flags)


def sources(folder: Path) -> list[Path]:
    """All files of a part that decide what is built, in a fixed order."""
    names = [p for p in folder.rglob("*") if p.suffix in {".go", ".c", ".mod", ".sum"}]
    return sorted(names, key=lambda p: p.relative_to(folder).as_posix())


def part_key(part: Part, source: Path, toolchain: str, arch: str) -> str:
    """Name of a part's folder in the cache: a hash of pins, sources, options, toolchain and architecture."""
    digest = hashlib.sha256()
    for item in (repr(part), toolchain if part.language == "go" else "", arch, _LINK):
        digest.update(item.encode() + b"\0")
    for path in sources(source / part.folder):
        digest.update(path.relative_to(source).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{part.folder}-{digest.hexdigest()[:16]}"


def set_key(keys: list[str]) -> str:
    """Name of the folder that holds the binaries of all parts together."""
    return hashlib.sha256("\n".join(keys).encode()).hexdigest()[:16]
