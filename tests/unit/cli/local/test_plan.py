"""What is built, and the names under which it is cached."""

import shutil
from pathlib import Path

import pytest

from fdl_cli.local import plan, toolchain
from fdl_cli.local.paths import cache_root, tools_source


def part(folder: str) -> plan.Part:
    return next(p for p in plan.PARTS if p.folder == folder)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the pins that a test may change."""
    target = tmp_path / "cluster"
    shutil.copytree(tools_source(), target)
    return target


def test_every_go_module_is_built_and_every_part_exists() -> None:
    folders = {p.parent.name for p in tools_source().glob("*/go.mod")}
    assert folders == {p.folder for p in plan.PARTS if p.language == "go"}
    assert all((tools_source() / p.folder).is_dir() for p in plan.PARTS)


def test_no_two_programs_have_one_name() -> None:
    outputs = [x.output for p in plan.PARTS for x in p.programs]
    assert len(set(outputs)) == len(outputs)
    assert set(plan.CLIENTS) <= set(outputs)


def test_the_key_is_the_same_for_the_same_and_another_for_anything_else(copy: Path) -> None:
    runc = part("runc")
    key = plan.part_key(runc, copy, "go1.26.8", "x86_64")
    assert key == plan.part_key(runc, tools_source(), "go1.26.8", "x86_64")
    assert key != plan.part_key(runc, copy, "go1.26.9", "x86_64")
    assert key != plan.part_key(runc, copy, "go1.26.8", "aarch64")
    assert key != plan.part_key(plan.Part("runc", runc.programs[:0]), copy, "go1.26.8", "x86_64")
    with (copy / "runc/go.sum").open("a") as pins:
        pins.write("changed\n")
    assert key != plan.part_key(runc, copy, "go1.26.8", "x86_64")
    other = plan.part_key(part("etcd"), copy, "go1.26.8", "x86_64")
    assert other == plan.part_key(part("etcd"), tools_source(), "go1.26.8", "x86_64")


def test_a_c_part_does_not_depend_on_go(copy: Path) -> None:
    assert plan.part_key(part("pause"), copy, "a", "x") == plan.part_key(part("pause"), copy, "b", "x")


def test_kubernetes_is_told_its_pinned_version() -> None:
    go_mod = (tools_source() / "kube/go.mod").read_text()
    version = plan.kubernetes_version(go_mod)
    assert version.startswith("v1.37.")
    assert f"-X k8s.io/component-base/version.gitVersion={version}" in plan.link_flags(part("kube"), go_mod)
    assert "-X" not in plan.link_flags(part("etcd"), "")
    with pytest.raises(ValueError, match="does not require"):
        plan.kubernetes_version("module x\n")


@pytest.mark.parametrize(
    ("text", "version"), [("go1.26.8", (1, 26)), ("go version go1.3 linux/amd64", (1, 3)), ("no go", None)]
)
def test_versions_of_go(text: str, version: tuple[int, int] | None) -> None:
    assert toolchain.parse_version(text) == version


def test_the_cache_is_where_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.delenv("FDL_CACHE", raising=False)
    assert cache_root() == Path("/x/fdl")
    monkeypatch.setenv("FDL_CACHE", "/y")
    assert cache_root() == Path("/y")


def test_a_build_uses_pinned_modules_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOFLAGS", "-mod=mod")
    env = toolchain.environment(toolchain.Toolchain(Path("/go/bin/go"), "go1.26.8"))
    assert "-mod=readonly" in env["GOFLAGS"]
    assert env["PATH"].startswith("/go/bin:")
