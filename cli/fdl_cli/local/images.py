"""Images of a native cluster: unpacked once on the machine, shown to every node by links."""

import gzip
import hashlib
import io
import json
import platform
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fdl_cli.local import processes
from fdl_cli.local.errors import LocalError

_UNPACK_LIMIT_S = 1800.0
_LINK_LIMIT_S = 180.0
_GO_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Image:
    """An unpacked image."""

    name: str
    digest: str


@dataclass(frozen=True)
class NodeStore:
    """A node's containerd as this machine reaches it: socket and root folder."""

    node: str
    socket: Path
    root: Path


def _json(data: object) -> bytes:
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()


def _layer(files: dict[str, Path]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, source in sorted(files.items()):
            info = tarfile.TarInfo(name)
            data = source.read_bytes()
            info.size, info.mode = len(data), 0o755
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def write_archive(target: Path, name: str, files: dict[str, Path], entrypoint: Sequence[str]) -> None:
    """Writes an OCI archive of one layer with ``files`` (path in the image -> file); same input, same bytes."""
    blobs: dict[str, bytes] = {}

    def add(data: bytes, media_type: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    plain = _layer(files)
    oci = "application/vnd.oci.image"
    config = {
        "architecture": _GO_ARCH.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Entrypoint": list(entrypoint), "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(plain).hexdigest()}"]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{oci}.manifest.v1+json",
        "config": add(_json(config), f"{oci}.config.v1+json"),
        "layers": [add(gzip.compress(plain, 6, mtime=0), f"{oci}.layer.v1.tar+gzip")],
    }
    entry = add(_json(manifest), f"{oci}.manifest.v1+json") | {"annotations": {"io.containerd.image.name": name}}
    index = {"schemaVersion": 2, "mediaType": f"{oci}.index.v1+json", "manifests": [entry]}
    members = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(index)}
    members |= {f"blobs/sha256/{digest}": data for digest, data in sorted(blobs.items())}
    with tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as tar:
        for path, data in members.items():
            info = tarfile.TarInfo(path)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def _run(command: list[str], limit_s: float, what: str) -> str:
    try:
        done = subprocess.run(processes.bound(command), capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired as fault:
        raise LocalError(f"{what} took longer than {limit_s:.0f} s and was ended. Try again.") from fault
    if done.returncode:
        raise LocalError(f"{what} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout


def unpack(program: Path, store: Path, archives: Sequence[Path]) -> list[Image]:
    """Unpacks OCI or Docker archives into ``store``, skipping layers that are there, and lists their images.

    Raises:
        LocalError: an archive is missing or damaged, or has no image for this machine.
    """
    for archive in archives:
        if not archive.is_file():
            raise LocalError(f"The image archive {archive} does not exist. Build the images first: fdl images build.")
    listed = ", ".join(a.name for a in archives)
    command = [str(program), "unpack", "--store", str(store), *map(str, archives)]
    raw = json.loads(_run(command, _UNPACK_LIMIT_S, f"Unpacking {listed}"))
    return [Image(i["name"], i["digest"]) for i in raw]


def link(program: Path, store: Path, nodes: Sequence[NodeStore], images: Sequence[Image]) -> dict[str, int]:
    """Shows unpacked images to nodes, all at once; returns how many were new on each node.

    Raises:
        LocalError: a node's containerd does not answer.
    """
    if not nodes or not images:
        return {}
    command = [str(program), "link", "--store", str(store)]
    for node in nodes:
        command += ["--node", f"{node.node},{node.socket},{node.root}"]
    command += [f"{i.name}@{i.digest}" for i in images]
    raw = json.loads(_run(command, _LINK_LIMIT_S, f"Loading {len(images)} images into {len(nodes)} nodes"))
    return {r["node"]: int(r["linked"]) for r in raw}


def chain_ids(diff_ids: Sequence[str]) -> list[str]:
    """Hexadecimal chain ids of an image's layers, as the OCI image specification defines them."""
    chain, found = "", []
    for diff in diff_ids:
        chain = diff if not chain else f"sha256:{hashlib.sha256(f'{chain} {diff}'.encode()).hexdigest()}"
        found.append(chain.removeprefix("sha256:"))
    return found
