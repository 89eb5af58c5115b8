"""The smallest image, really built (or found in the cache, as everywhere) and looked into."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from fdl_api.version import VERSION
from fdl_cli.images.command import ensure_images, image_store


@pytest.fixture(scope="module")
def archive() -> Path:
    return ensure_images(("prober",))["prober"]


@pytest.fixture(scope="module")
def blobs(archive: Path) -> dict[str, Any]:
    """Index, manifest and configuration of the archive."""
    with tarfile.open(archive) as tar:

        def read(name: str) -> Any:
            data = tar.extractfile(name)
            assert data is not None
            return json.load(data)

        index = read("index.json")
        manifest = read("blobs/" + index["manifests"][0]["digest"].replace(":", "/"))
        return {
            "index": index,
            "manifest": manifest,
            "config": read("blobs/" + manifest["config"]["digest"].replace(":", "/")),
        }


def test_the_archive_is_named_as_chart_and_nodes_know_it(blobs: dict[str, Any]) -> None:
    names = {entry["annotations"]["io.containerd.image.name"] for entry in blobs["index"]["manifests"]}
    assert names == {"fdl.local/prober:dev"}


def test_the_program_runs_as_no_one_of_weight(blobs: dict[str, Any]) -> None:
    config = blobs["config"]["config"]
    assert config["User"] == "65532:65532"
    assert config["Cmd"] == ["python", "-m", "fdl_prober"]


def test_labels_tell_version_and_inputs(archive: Path, blobs: dict[str, Any]) -> None:
    labels = blobs["config"]["config"]["Labels"]
    assert labels["org.opencontainers.image.version"] == VERSION
    assert archive.name == f"prober-{labels['dev.fdl.inputs']}.tar"


def test_nothing_of_the_building_machine_is_in_the_image(archive: Path, blobs: dict[str, Any]) -> None:
    said = json.dumps(blobs["config"])
    assert "_proxy" not in said.lower()
    with tarfile.open(archive) as tar:
        for layer in blobs["manifest"]["layers"]:
            data = tar.extractfile("blobs/" + layer["digest"].replace(":", "/"))
            assert data is not None
            with tarfile.open(fileobj=data) as tree:
                names = {entry.name for entry in tree if entry.isfile()}
            kept = {name for name in names if name.startswith(("run/secrets/", "opt/pip/", "var/lib/apt/lists/deb."))}
            assert kept == set()


def test_layers_are_uncompressed_and_our_code_is_a_thin_last_one(blobs: dict[str, Any]) -> None:
    layers = blobs["manifest"]["layers"]
    assert all(layer["mediaType"].endswith(".tar") for layer in layers)
    assert layers[-1]["size"] < sum(layer["size"] for layer in layers) / 50


def test_a_second_build_finds_the_first(archive: Path) -> None:
    before = archive.stat().st_mtime_ns
    assert ensure_images(("prober",))["prober"] == archive
    assert archive.stat().st_mtime_ns == before
    assert image_store().current_path("prober") == archive
