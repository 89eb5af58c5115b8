"""Things that happen at a bad moment: before the start, during a join, during a recovery. One run bears them all."""

from pathlib import Path
from typing import Any

from fdl_cli.local import Cluster
from tests.e2e.support import build, evidence, faults
from tests.e2e.support.kube import Kube, members, training, until

EPOCHS = 100
NAME = "odd"


def row(run: dict[str, Any], ordinal: int) -> dict[str, Any]:
    """A seat's member."""
    return next((member for member in members(run) if member["ordinal"] == ordinal), {})


def test_a_run_bears_what_happens_at_bad_moments(kube: Kube, cluster: Cluster, namespace: str) -> None:
    """Suspended at once; a joiner killed; all killed, the newest checkpoint corrupted, scaled before they are back.

    Everybody dead together resumes from a checkpoint without a new attempt (case D2).
    """
    cohort = {**build.cpu_cohort(NAME, 3), "minReplicas": 1, "maxReplicas": 3}
    checkpoint = {"claim": build.CLAIM, "intervalSeconds": 2, "keep": 4}
    kube.create(namespace, build.digits(NAME, epochs=EPOCHS, cohorts=[cohort], checkpoint=checkpoint))
    kube.patch(namespace, NAME, {"spec": {"runPolicy": {"suspend": True}}})
    kube.wait_phase(namespace, NAME, "Suspended", seconds=60)
    until("no pod is left", lambda: not kube.pods(namespace, NAME), 60)
    kube.patch(namespace, NAME, {"spec": {"runPolicy": {"suspend": False}}})
    run = kube.wait_window(namespace, NAME, 3, seconds=180)
    attempt = run["status"]["attempt"]

    _kill_a_joiner(kube, cluster, namespace)

    folder = evidence.host_directory(cluster, run)
    until("two checkpoints are there", lambda: len(list(folder.glob("ckpt-*"))) >= 2, 60)
    for pod in kube.live_pods(namespace, NAME):
        faults.kill(cluster, namespace, pod.metadata.name)
    corrupt = _damage_newest(folder)
    kube.patch(namespace, NAME, {"spec": {"replicas": 2}})

    run = kube.wait_phase(namespace, NAME, "Succeeded", seconds=300)
    assert run["status"]["attempt"] == attempt, "a recovery is no new attempt"
    assert {member["ordinal"] for member in members(run)} == {0, 1}
    assert training(run)["metrics"]["accuracy"] >= 0.95
    assert training(run)["checkpoint"]["final"]
    assert corrupt.name != training(run)["checkpoint"]["path"]
    evidence.accounting(cluster, run, EPOCHS)


def _kill_a_joiner(kube: Kube, cluster: Cluster, namespace: str) -> None:
    """SIGKILL a member, and its successor as soon as it has processes: the third one trains."""
    first = row(kube.run(namespace, NAME), 1)
    faults.kill(cluster, namespace, first["name"])

    def joins(run: dict[str, Any]) -> bool:
        member = row(run, 1)
        return member.get("incarnation") == first["incarnation"] + 1 and bool(
            cluster.node_pids(namespace, member["name"])
        )

    run = kube.wait(namespace, NAME, "a successor starts", joins, 60)
    assert row(run, 1)["phase"] in ("Pending", "Starting"), "it has joined already"
    faults.kill(cluster, namespace, row(run, 1)["name"])

    def joined(run: dict[str, Any]) -> bool:
        member = row(run, 1)
        return member.get("incarnation") == first["incarnation"] + 2 and member["phase"] == "Running"

    kube.wait(namespace, NAME, "the third one trains", joined, 120)


def _damage_newest(folder: Path) -> Path:
    """Flip a byte of the newest checkpoint; nobody is left who could write another."""
    newest = max(folder.glob("ckpt-*"), key=lambda path: path.name)
    content = newest / "model.safetensors"
    data = bytearray(content.read_bytes())
    data[-1] ^= 0xFF
    content.write_bytes(data)
    return newest
