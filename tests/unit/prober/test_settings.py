"""Settings from the environment."""

import platform
from pathlib import Path

import pytest

from fdl_prober.observe import sources
from fdl_prober.settings import (
    DRIVER_ROOTS,
    LOADER,
    LOCAL_DRIVER_ROOTS,
    Folder,
    SettingsError,
    from_env,
    local_from_env,
)


def test_defaults() -> None:
    settings = from_env({"FDL_NODE_NAME": "n1"})
    assert (settings.node, settings.period_seconds, settings.sentinel) == ("n1", 30.0, None)
    assert settings.driver_roots == DRIVER_ROOTS


def test_everything_can_be_set() -> None:
    settings = from_env(
        {
            "FDL_NODE_NAME": "n1",
            "FDL_NAMESPACE": "ns",
            "FDL_DRIVER_ROOT": "/a:/b",
            "FDL_SYSFS_ROOT": "/s",
            "FDL_DEV_ROOT": "/d",
            "FDL_SENTINEL": "/v/file",
            "FDL_PERIOD_SECONDS": "2.5",
            "FDL_REFRESH_SECONDS": "30",
        }
    )
    assert settings.driver_roots == (LOADER, "/a", "/b")
    assert (settings.sysfs_root, settings.dev_root, settings.sentinel) == (Path("/s"), Path("/d"), Path("/v/file"))
    assert (settings.namespace, settings.period_seconds, settings.refresh_seconds) == ("ns", 2.5, 30.0)


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf", "1e9"])
def test_a_period_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(SettingsError, match="FDL_PERIOD_SECONDS"):
        from_env({"FDL_NODE_NAME": "n1", "FDL_PERIOD_SECONDS": text})


def test_a_node_without_a_name_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"FDL_NODE_NAME.*spec\.nodeName"):
        from_env({})


def test_simulated_drivers_count_only_on_a_node_that_is_labelled_so() -> None:
    settings = from_env({"FDL_NODE_NAME": "n1"})
    roots, sysfs = sources(settings, simulated=False)
    assert not any("run/fdl" in root for root in roots)
    assert sysfs == Path("/sys")
    assert sources(settings, simulated=True) == (("/run/fdl/driver/nvidia",), Path("/run/fdl/driver/amd/sys"))


def test_folders_with_what_they_are_for() -> None:
    settings = from_env(
        {
            "FDL_NODE_NAME": "n1",
            "FDL_DATA_FOLDERS": "/a:/b",
            "FDL_CHECKPOINT_FOLDERS": "/c",
            "FDL_CHECKPOINT_BYTES": "1000",
            "FDL_STALE_PROCESSES": "true",
        }
    )
    assert settings.folders == (Folder(Path("/a")), Folder(Path("/b")), Folder(Path("/c"), "checkpoints", 1000))
    assert settings.stale_processes
    assert from_env({"FDL_NODE_NAME": "n1"}).folders == ()


@pytest.mark.parametrize(("key", "text"), [("FDL_CHECKPOINT_BYTES", "20GiB"), ("FDL_STALE_PROCESSES", "yes")])
def test_what_is_no_number_and_no_switch_is_refused_by_name(key: str, text: str) -> None:
    with pytest.raises(SettingsError, match=key):
        from_env({"FDL_NODE_NAME": "n1", key: text})


def test_a_machine_outside_of_a_cluster_is_named_after_its_host() -> None:
    settings = local_from_env({})
    assert settings.node == (platform.node() or "localhost")
    assert settings.driver_roots == LOCAL_DRIVER_ROOTS
    assert local_from_env({"FDL_NODE_NAME": "box", "FDL_DRIVER_ROOT": "/d"}).driver_roots == (LOADER, "/d")


def test_the_name_of_a_host_may_be_any_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "node", lambda: b"box\xff\x1b[2J".decode(errors="surrogateescape"))
    assert local_from_env({}).node == "box\ufffd[2J"
