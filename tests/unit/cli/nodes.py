"""Nodes as an API server has them, for tests of what people are shown."""

from datetime import UTC, datetime, timedelta
from typing import Any

from fdl_api import labels
from fdl_api.report import Check, Device, Driver, Host, Interface, Report

NOW = datetime(2026, 3, 1, 3, 0, tzinfo=UTC)


def report(name: str, age: float = 30.0, **parts: Any) -> Report:
    """A report that is ``age`` seconds old."""
    host = Host(
        cpus=64,
        memory_bytes=512 << 30,
        kernel="6.1.0",
        interfaces=(Interface(name="eth0", addresses=("10.0.0.3",), speed_mbps=25000, up=True),),
    )
    return Report(**{"node": name, "time": NOW - timedelta(seconds=age), "ready": True, "host": host} | parts)


def node(
    name: str, made: Report | None = None, *, taints: tuple[dict[str, str], ...] = (), kubelet: bool = True, **tags: str
) -> dict[str, Any]:
    """A node; ``tags`` are labels below fdl.dev/, with ``__`` for a dot."""
    own = {labels.DOMAIN + key.replace("__", ".").replace("gpu_", "gpu-"): text for key, text in tags.items()}
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "labels": {"kubernetes.io/hostname": name, **own},
            "annotations": {labels.REPORT: made.render()} if made is not None else {},
        },
        "spec": {"taints": list(taints)},
        "status": {
            "conditions": [{"type": "Ready", "status": "True" if kubelet else "False"}],
            "allocatable": {"cpu": "63500m", "memory": "500Gi", "pods": "110"},
        },
    }


def gpu(name: str, age: float = 30.0, *checks: Check, count: int = 2, **tags: str) -> dict[str, Any]:
    """A node with H200s; ``tags`` go before its own."""
    own = {
        "ready": "true",
        "gpu_vendor": "nvidia",
        "gpu_arch": "sm_90",
        "vendor__nvidia": "true",
        "vendor__cpu": "true",
        "count__nvidia": str(count),
        "arch__sm_90": "true",
        "variant__cuda": "verified",
        "nccl__cuda": "2.28",
    }
    devices = tuple(
        Device(
            vendor="nvidia", index=at, name="NVIDIA H200", arch="sm_90", memory_bytes=141 << 30, pci=f"0000:c{at}:00.0"
        )
        for at in range(count)
    )
    drivers = {"nvidia": Driver(state="ready", version="580.12", runtime="13.0")}
    good = Check(name="gpu-survey", severity="pass", message=f"{count} NVIDIA devices")
    made = node(name, report(name, age, devices=devices, drivers=drivers, checks=(good, *checks)), **own | tags)
    made["status"]["allocatable"]["nvidia.com/gpu"] = str(count)
    return made


def cpu(name: str, age: float = 30.0, *checks: Check, **tags: str) -> dict[str, Any]:
    """A node without devices; ``tags`` go before its own."""
    own = {"ready": "true", "gpu_vendor": "none", "vendor__cpu": "true", "variant__cpu": "covers"}
    return node(name, report(name, age, checks=checks), **own | tags)


CONTROL_PLANE = ({"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"},)


def cluster(*conditions: tuple[str, str, str], **spec: Any) -> dict[str, Any]:
    """FdlCluster/default with variants for all; conditions as (type, status, message)."""
    variants = [
        {"name": "cuda", "vendor": "nvidia", "image": "r/cuda:1", "archs": ["sm_80", "sm_90"]},
        {"name": "cpu", "vendor": "cpu", "image": "r/cpu:1"},
    ]
    return {
        "metadata": {"name": "default"},
        "spec": {"variants": variants, **spec},
        "status": {
            "conditions": [
                {
                    "type": kind,
                    "status": status,
                    "lastTransitionTime": "2026-03-01T02:00:00Z",
                    "reason": "Because",
                    "message": message,
                }
                for kind, status, message in conditions
            ]
        },
    }
