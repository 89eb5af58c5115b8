"""Archives that nodes import."""

import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from fdl_cli.images.archive import Layer, write_archive
from fdl_cli.images.errors import ImageError

REFERENCE = "fdl.local/x:dev"


def exported(folder: Path, layers: list[bytes]) -> Path:
    """A folder as ``push dir:`` writes it."""
    folder.mkdir()
    (folder / "version").write_text("Directory Transport Version: 1.1\n")

    def blob(data: bytes, media_type: str) -> dict[str, object]:
        plain = hashlib.sha256(data).hexdigest()
        (folder / plain).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{plain}", "size": len(data)}

    oci = "application/vnd.oci.image"
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{oci}.manifest.v1+json",
        "config": blob(b"{}", f"{oci}.config.v1+json"),
        "layers": [blob(layer, f"{oci}.layer.v1.tar") for layer in layers],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_an_archive_holds_every_blob_under_its_digest_and_names_the_image(tmp_path: Path) -> None:
    folder, target = exported(tmp_path / "in", [b"low", b"high"]), tmp_path / "x.tar"
    layers = write_archive(folder, target, REFERENCE)
    assert layers == [Layer("sha256:" + hashlib.sha256(data).hexdigest(), len(data)) for data in (b"low", b"high")]
    with tarfile.open(target) as archive:
        content = {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]
    index = json.loads(content["index.json"])["manifests"]
    assert len(index) == 1
    assert set(index[0]["annotations"].values()) == {REFERENCE}
    named = [index[0]["digest"], *(layer.digest for layer in layers)]
    for digest in named:
        data = content["blobs/sha256/" + digest.removeprefix("sha256:")]
        assert "sha256:" + hashlib.sha256(data).hexdigest() == digest
    assert json.loads(content["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}


def test_the_same_layer_twice_is_stored_once(tmp_path: Path) -> None:
    target = tmp_path / "x.tar"
    write_archive(exported(tmp_path / "in", [b"same", b"same"]), target, REFERENCE)
    with tarfile.open(target) as archive:
        names = archive.getnames()
    assert len(names) == len(set(names))


def test_equal_images_give_equal_archives(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_archive(exported(tmp_path / name, [b"x"]), tmp_path / f"{name}.tar", REFERENCE)
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_a_missing_blob_is_named(tmp_path: Path) -> None:
    folder = exported(tmp_path / "in", [b"low"])
    (folder / hashlib.sha256(b"low").hexdigest()).unlink()
    with pytest.raises(ImageError, match=r"lacks the blob sha256:.* of fdl.local/x:dev"):
        write_archive(folder, tmp_path / "x.tar", REFERENCE)
