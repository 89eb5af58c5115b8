"""What a run left on its checkpoint claim, proved by the programs that users have."""

import time
from pathlib import Path
from typing import Any

from fdl_cli.demo import proof
from fdl_cli.local import Cluster
from fdl_trainer.audit import Proof, prove
from tests.e2e.support import build
from tests.e2e.support.kube import Kube, Run

DIGITS_SAMPLES = 1497


def directory(run: Run) -> str:
    """Name of the run's directory on its claim."""
    return f"{run['metadata']['name']}-{run['metadata']['uid'][:8]}"


def host_directory(cluster: Cluster, run: Run) -> Path:
    """The same as this machine sees it.

    Raises:
        AssertionError: it is not there.
    """
    found = list(cluster.paths.volumes.glob(f"**/{directory(run)}"))
    assert found, f"{directory(run)} is nowhere below {cluster.paths.volumes}"
    return found[0]


def accounting(cluster: Cluster, run: Run, epochs: int, samples: int = DIGITS_SAMPLES) -> Proof:
    """Proof from the indices that the loaders logged; fails unless each sample counts exactly once per epoch."""
    audit = host_directory(cluster, run) / "audit"
    found = prove(audit.glob("*.jsonl"), samples, epochs)
    assert found.ok, f"the accounting does not hold: {found}"
    return found


def commits(cluster: Cluster, run: Run) -> int:
    """Lines about commits in the audit logs: grows while training goes on, whoever can see it."""
    audit = host_directory(cluster, run) / "audit"
    return sum(path.read_text().count('"k":"commit"') for path in audit.glob("*.jsonl"))


def examine(kube: Kube, namespace: str, run: Run, epochs: int, use: str = "") -> proof.Answer:
    """The same proof, the export and a load by plain torch, in a pod of the trainer's image."""
    name = f"{run['metadata']['name']}-proof"
    question = proof.Question(directory(run), build.CLAIM, build.EXAMPLES, DIGITS_SAMPLES, epochs, use)
    pod: dict[str, Any] = proof.pod(name, question)
    kube.core.create_namespaced_pod(namespace, pod)
    end = time.monotonic() + proof.LIMIT_SECONDS
    while True:
        found = kube.pod(namespace, name)
        phase = "" if found is None else found.status.phase
        if phase == "Succeeded":
            return proof.read(kube.logs(namespace, name, lines=200))
        assert phase != "Failed", f"the check failed:\n{kube.logs(namespace, name)}"
        assert time.monotonic() < end, f"the check did not end:\n{kube.logs(namespace, name)}"
        time.sleep(0.3)
