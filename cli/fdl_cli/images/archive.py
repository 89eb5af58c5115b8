"""OCI archives: one tar with an image's blobs, layers uncompressed so that nodes unpack them fast."""

import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fdl_cli.images.errors import ImageError

_MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of an image."""

    digest: str
    bytes: int


def index_json(manifest: bytes, reference: str) -> bytes:
    """``index.json`` of an archive with one image, named the way containerd, podman and kind each read it."""
    descriptor = {
        "mediaType": json.loads(manifest).get("mediaType", _MANIFEST_TYPE),
        "digest": "sha256:" + hashlib.sha256(manifest).hexdigest(),
        "size": len(manifest),
        "annotations": {"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": reference},
    }
    return json.dumps({"schemaVersion": 2, "manifests": [descriptor]}, sort_keys=True).encode()


def write_archive(exported: Path, target: Path, reference: str) -> list[Layer]:
    """Make an OCI archive from the folder that ``push dir:`` wrote; equal blobs give an equal file.

    Returns:
        The layers, lowest first.

    Raises:
        ImageError: the folder lacks a blob that its manifest names.
    """
    manifest = (exported / "manifest.json").read_bytes()
    document: dict[str, Any] = json.loads(manifest)
    blobs = [document["config"], *document["layers"]]
    with tarfile.open(target, "w") as archive:
        _add(archive, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _add(archive, "index.json", index_json(manifest, reference))
        _add(archive, f"blobs/sha256/{hashlib.sha256(manifest).hexdigest()}", manifest)
        for digest in dict.fromkeys(blob["digest"] for blob in blobs):
            plain = digest.removeprefix("sha256:")
            path = exported / plain
            if not path.is_file():
                raise ImageError(f"{exported} lacks the blob {digest} of {reference}. Build again with --no-cache.")
            entry = tarfile.TarInfo(f"blobs/sha256/{plain}")
            entry.size, entry.mode = path.stat().st_size, 0o644
            with path.open("rb") as data:
                archive.addfile(entry, data)
    return [Layer(layer["digest"], int(layer["size"])) for layer in document["layers"]]


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), 0o644
    archive.addfile(entry, io.BytesIO(data))
