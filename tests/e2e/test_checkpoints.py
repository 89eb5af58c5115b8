"""Volumes that misbehave: training never suffers, and a resume takes the newest checkpoint that is valid."""

import contextlib
import json
from pathlib import Path
from typing import Any

from fdl_cli.local import Cluster
from tests.e2e.support import build, evidence, nodes
from tests.e2e.support.kube import Kube, condition, phase_of, training, until

EPOCHS = 60


def rest(kube: Kube, namespace: str, name: str) -> None:
    """Suspend a run and wait until its pods are gone."""
    kube.patch(namespace, name, {"spec": {"runPolicy": {"suspend": True}}})
    kube.wait_phase(namespace, name, "Suspended", seconds=120)
    until("no member is left", lambda: not kube.pods(namespace, name), 60)


def checkpoints(cluster: Cluster, run: dict[str, Any]) -> list[Path]:
    """The run's checkpoints, oldest first."""
    return sorted(evidence.host_directory(cluster, run).glob("ckpt-*"))


def test_a_corrupt_and_an_unreadable_checkpoint_are_passed_over_and_named(
    kube: Kube, cluster: Cluster, namespace: str
) -> None:
    """The newest is corrupt, the second unreadable: the run resumes from the third, and says what it skipped."""
    kube.create(
        namespace,
        build.digits(
            "damaged", members=2, epochs=EPOCHS, checkpoint={"claim": build.CLAIM, "intervalSeconds": 2, "keep": 5}
        ),
    )
    run = kube.run(namespace, "damaged")
    kube.wait_window(namespace, "damaged", 2, seconds=180)
    until("three checkpoints are there", lambda: len(checkpoints(cluster, run)) >= 3, 120)
    rest(kube, namespace, "damaged")
    oldest, *_, second, newest = checkpoints(cluster, run)
    content = newest / "model.safetensors"
    data = bytearray(content.read_bytes())
    data[-1] ^= 0xFF
    content.write_bytes(data)
    second.chmod(0)
    try:
        kube.patch(namespace, "damaged", {"spec": {"runPolicy": {"suspend": False}}})
        run = kube.wait(namespace, "damaged", "attempt 2 trains", lambda r: training(r).get("attempt") == 2, 180)
        told = json.dumps(run["status"])
        assert newest.name in told, "the status does not name the corrupt checkpoint"
        run = kube.wait_phase(namespace, "damaged", "Succeeded", seconds=300)
    finally:
        with contextlib.suppress(FileNotFoundError):  # the run may have pruned it meanwhile
            second.chmod(0o755)
    evidence.accounting(cluster, run, EPOCHS)
    assert oldest.parent.is_dir()


def test_no_checkpoint_is_left_and_the_run_refuses_to_start_afresh(
    kube: Kube, cluster: Cluster, namespace: str
) -> None:
    """Progress and no valid checkpoint: Failed with the remedy, unless allowFreshStart (case D10)."""
    kube.create(namespace, build.digits("lost", members=1, epochs=EPOCHS))
    kube.wait_window(namespace, "lost", 3, seconds=180)
    rest(kube, namespace, "lost")
    run = kube.run(namespace, "lost")
    for found in checkpoints(cluster, run):
        (found / "MANIFEST.json").write_text("{}")
    kube.patch(namespace, "lost", {"spec": {"runPolicy": {"suspend": False}}})
    run = kube.wait(namespace, "lost", "the run fails", lambda r: phase_of(r) in ("Failed", "Succeeded"), 180)
    assert phase_of(run) == "Failed", kube.diagnose(namespace, "lost")
    failed = condition(run, "Failed")
    assert failed["reason"] == "NoCheckpointToResume"
    assert "allowFreshStart" in failed["message"]


def test_a_full_volume_costs_no_training(kube: Kube, cluster: Cluster, namespace: str) -> None:
    """No checkpoint fits: the condition says so while training goes on, and space makes it well again."""
    path = f"/var/lib/fdl-small/{namespace}"
    with nodes.disk(cluster, "fast", path, "100k") as disk, nodes.claim(kube, namespace, "small", path):
        cohort = {**build.cpu_cohort("full", 1), "nodeSelector": {"kubernetes.io/hostname": "fast"}}
        kube.create(
            namespace,
            build.digits(
                "full", epochs=EPOCHS, cohorts=[cohort], data=None, checkpoint={"claim": "small", "intervalSeconds": 1}
            ),
        )

        def says_full(run: dict[str, Any]) -> bool:
            found = condition(run, "CheckpointDurable")
            return found.get("status") == "False" and found.get("reason") == "CheckpointFailed"

        run = kube.wait(namespace, "full", "the condition says that the volume is full", says_full, 180)
        assert "CheckpointVolumeFull" in json.dumps(run["status"]), run["status"]
        window = training(run)["window"]
        kube.wait_window(namespace, "full", window + 5, seconds=60)
        disk.resize("50m")
        run = kube.wait_phase(namespace, "full", "Succeeded", seconds=240)
        assert training(run)["checkpoint"]["final"]
        assert condition(run, "CheckpointDurable")["status"] == "True"
