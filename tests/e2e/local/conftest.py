"""Fixtures of the tests of the local cluster itself. They start clusters of their own, beside any other."""

import os
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fdl_cli.local import Cluster, toolchain
from fdl_cli.local.images import write_archive
from fdl_cli.local.nodespec import parse_node

PROBE = "fdl.local/probe:1"


@pytest.fixture(scope="session")
def probe_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Image of the program in ``probe/``."""
    folder = tmp_path_factory.mktemp("probe")
    tools = toolchain.find() or toolchain.fetch()
    env = toolchain.environment(tools) | {"CGO_ENABLED": "0", "GOCACHE": str(folder / "go-build")}
    source = Path(__file__).parent / "probe"
    subprocess.run([tools.go, "build", "-o", folder / "probe", "."], cwd=source, env=env, check=True, timeout=300)
    write_archive(folder / "probe.tar", PROBE, {"probe": folder / "probe"}, ["/probe"])
    return folder / "probe.tar"


def require_native() -> None:
    """Skips where the machine cannot run the native provider at all."""
    if os.geteuid() != 0:
        pytest.skip("the native cluster needs root")
    if platform.system() != "Linux":
        pytest.skip("the native cluster needs Linux")


@pytest.fixture(scope="session")
def cluster(probe_archive: Path) -> Iterator[Cluster]:
    """A cluster of three unequal nodes: a plain one, a slow one, and one with simulated devices."""
    require_native()
    made = Cluster("t-local", say=print)
    made.down()
    nodes = [
        parse_node("name=plain"),
        parse_node("name=slow,cpu=0.5,memory=1Gi"),
        parse_node("name=sim,nvidia=2:sm_90,amd=1:gfx942"),
    ]
    try:
        made.up(nodes, provider="native", images=[probe_archive])
        yield made
    finally:
        made.down()
