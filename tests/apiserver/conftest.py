"""A real API server for the tests of this folder, with and without our CRDs."""

import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from .harness import START_LIMIT_S, ApiServer, started

CRDS = Path(__file__).parents[2] / "crds"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder need the server."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("apiserver")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """The API server, without any object of ours."""
    with started(tmp_path_factory.mktemp("apiserver")) as running:
        yield running


@pytest.fixture(scope="session")
def crds(server: ApiServer) -> ApiServer:
    """The server with both CRDs of ``crds/``, applied server-side and established."""
    install(server, sorted(CRDS.glob("*.yaml")))
    return server


def install(server: ApiServer, files: Iterable[Path]) -> None:
    """Apply CRDs and wait until the server serves their kinds."""
    for path in files:
        manifest = yaml.safe_load(path.read_text())
        name = manifest["metadata"]["name"]
        where = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
        answer = server.apply(where, manifest, manager="fdl-install")
        assert answer.code in (200, 201), answer.message
        deadline = time.monotonic() + START_LIMIT_S
        while not _is_established(server.request("GET", where).body):
            assert time.monotonic() < deadline, f"{name} was not established"
            time.sleep(0.05)


def _is_established(crd: dict[str, Any]) -> bool:
    conditions = crd.get("status", {}).get("conditions") or []
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


@pytest.fixture
def namespace(server: ApiServer) -> str:
    """A fresh namespace."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    answer = server.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    assert answer.code == 201, answer.message
    return name
