"""One real cluster for all end-to-end tests: three unequal nodes, one with simulated NVIDIA devices, one with AMD.

Environment: ``FDL_E2E_CLUSTER`` names it, ``FDL_E2E_KEEP=1`` leaves it running. Every test has namespaces of its own
that enforce pod security "restricted". A test that fails shows status, events and logs of its runs.
"""

import itertools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fdl_cli.demo import setup
from fdl_cli.demo.kube import Tools
from fdl_cli.images.command import ensure_images
from fdl_cli.local import Cluster
from fdl_cli.local.nodespec import parse_node
from tests.e2e.support import build, fleet
from tests.e2e.support.kube import Kube, until

NODES = (
    "name=fast,cpu=0.8",
    "name=medium,cpu=0.5",
    "name=slow,cpu=0.35",
    "name=green,cpu=0.4,nvidia=2:sm_90",
    "name=red,cpu=0.4,amd=1:gfx942",
)
VARIANTS = [
    {"name": "cpu", "vendor": "cpu"},
    {"name": "cuda", "vendor": "nvidia", "archs": ["sm_80", "sm_90"], "ncclVersion": "2.28.9"},
    {"name": "rocm", "vendor": "amd", "archs": ["gfx90a", "gfx942"], "ncclVersion": "2.26.6"},
]
PROBE_SECONDS = 5
TRAINING_SECONDS = 0.5


@dataclass(frozen=True)
class World:
    """The cluster with fdl installed."""

    cluster: Cluster
    tools: Tools
    kube: Kube


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder; the first one waits for the cluster, which may take minutes."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.flaky(reruns=1))  # see CONTRIBUTING.md, Tests
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    """Cluster up, images loaded, chart installed; everything is taken down at the end."""
    if os.geteuid() != 0:
        pytest.skip("the local cluster needs root")
    cluster = Cluster(os.environ.get("FDL_E2E_CLUSTER") or "fdl-test", say=print)
    archives = ensure_images(console=Console(stderr=True))
    try:
        cluster.up([parse_node(text) for text in NODES], provider="native", images=list(archives.values()))
        tools = Tools(cluster.kubeconfig, cluster.bin / "kubectl", cluster.bin / "helm")
        kube = Kube(cluster.kubeconfig)
        fleet.make_volume(cluster, kube)
        install(tools)
        yield World(cluster, tools, kube)
    finally:
        if os.environ.get("FDL_E2E_KEEP") != "1":
            cluster.down()


def install(tools: Tools) -> None:
    """The chart with the values of these tests: news of hardware and training come sooner than they would have to."""
    settings = (
        f"prober.periodSeconds={PROBE_SECONDS}",
        f"operator.env.FDL_TRAINING_INTERVAL_SECONDS={TRAINING_SECONDS}",
        *fleet.VALUES,
    )
    setup.install(tools, setup.checkout(), *settings, variants=json.dumps(VARIANTS))


@pytest.fixture(scope="session")
def cluster(world: World) -> Cluster:
    """The cluster: nodes and their faults."""
    return world.cluster


@pytest.fixture(scope="session")
def kube(world: World) -> Kube:
    """The API server."""
    return world.kube


@pytest.fixture(scope="session")
def tools(world: World) -> Tools:
    """kubectl and helm."""
    return world.tools


_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def make_namespace(world: World) -> Callable[[str], str]:
    """Make a namespace with a claim named ``work``; gone with the cluster."""

    def make(stem: str) -> str:
        name = f"t{next(_numbers)}-{os.getpid()}-{stem}"[:60].rstrip("-")
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        world.kube.core.create_namespace({"metadata": {"name": name, "labels": labels}})
        world.kube.core.create_namespaced_persistent_volume_claim(name, build.claim())
        return name

    return make


@pytest.fixture
def namespace(request: pytest.FixtureRequest, world: World, make_namespace: Callable[[str], str]) -> Iterator[str]:
    """A namespace of this test's own; its runs are deleted afterwards, so that they free their nodes."""
    stem = request.node.originalname.removeprefix("test_").replace("_", "-")[:30].strip("-")
    name = make_namespace(stem)
    yield name
    report = request.node.stash.get(_FAILED, None)
    if report is not None:
        report.sections.append((f"runs in {name}", _diagnose(world.kube, name)))
    world.kube.delete_all(name)


@pytest.fixture
def spec(kube: Kube) -> Iterator[dict[str, Any]]:
    """The spec of FdlCluster/default, put back afterwards."""
    before: dict[str, Any] = fleet.read(kube)["spec"]
    yield before
    until("there is an FdlCluster", lambda: bool(fleet.read(kube)), 60)
    fleet.replace(kube, before)
    fleet.probe_now(kube, *fleet.NODES)


_FAILED: pytest.StashKey[pytest.TestReport] = pytest.StashKey()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Keep a failed report, so that the namespace's fixture can add what explains it."""
    report = yield
    if report is not None and report.when == "call" and report.failed:
        item.stash[_FAILED] = report
    return report


def _diagnose(kube: Kube, namespace: str) -> str:
    return "\n".join(kube.diagnose(namespace, name) for name in kube.run_names(namespace))
