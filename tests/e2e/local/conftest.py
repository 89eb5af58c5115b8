"""Fixtures of the tests of the local cluster itself. They start clusters of their own, beside any other."""

import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fdl_cli.local import Cluster, toolchain
from fdl_cli.local.images import write_archive
from fdl_cli.local.nodespec import parse_node
from fdl_cli.local.paths import cache_root

PROBE = "fdl.local/probe:1"


@pytest.fixture(scope="session")
def probe_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Image of the program in ``probe/``, kept beside the other programs: Go compiles its library for half a minute."""
    source = Path(__file__).parent / "probe"
    inputs = b"".join(path.name.encode() + path.read_bytes() for path in sorted(source.iterdir()))
    kept = cache_root() / "test-probe" / f"{hashlib.sha256(inputs).hexdigest()[:16]}.tar"
    if kept.exists():
        return kept
    folder = tmp_path_factory.mktemp("probe")
    tools = toolchain.find() or toolchain.fetch()
    env = toolchain.environment(tools) | {"CGO_ENABLED": "0", "GOCACHE": str(folder / "go-build")}
    subprocess.run([tools.go, "build", "-o", folder / "probe", "."], cwd=source, env=env, check=True, timeout=300)
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_archive(folder / "probe.tar", PROBE, {"probe": folder / "probe"}, ["/probe"])
    part = kept.with_suffix(f".{os.getpid()}")
    shutil.copyfile(folder / "probe.tar", part)
    part.replace(kept)
    return kept


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
