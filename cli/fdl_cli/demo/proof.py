"""Checks what a run left on its checkpoint claim, in a pod of the trainer's image, with programs that anyone can run:

* ``python -m fdl_trainer.audit``: every sample exactly once per epoch, from the indices that the loaders logged;
* ``python -m fdl_trainer.export``: opens the newest checkpoint, verifies it, writes one file;
* a script without fdl that loads this file with plain torch.
"""

import json
import shlex
from dataclasses import dataclass
from typing import Any

from fdl_cli.demo.kube import DemoError

MOUNT = "/claim"
LIMIT_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class Question:
    """What to check.

    Attributes:
        run: name of the run.
        claim: claim with its checkpoints.
        image: trainer image with the script.
        samples: samples in the training set.
        epochs: passes over it.
        use: script without fdl that gets the exported file as its argument, or empty.
    """

    run: str
    claim: str
    image: str
    samples: int
    epochs: int
    use: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found.

    Attributes:
        audit: the accounting, as ``fdl_trainer.audit --json`` prints it.
        exported: what ``fdl_trainer.export`` said.
        used: what the script without fdl said.
    """

    audit: dict[str, Any]
    exported: str
    used: str


def commands(question: Question) -> list[str]:
    """The shell commands, in order; ``$dir`` is the run's directory on the claim."""
    out = f"{MOUNT}/{question.run}.pt"
    counts = f"--samples {question.samples} --epochs {question.epochs}"
    find = f"find {MOUNT} -type d -name audit -path {shlex.quote(f'*{question.run}*')}"
    told = [
        f"dir=$({find} | head -n 1); dir=${{dir%/audit}}",
        f'python -m fdl_trainer.audit "$dir/audit" {counts} --json || true',
        f'python -m fdl_trainer.export "$dir" {shlex.quote(out)}',
    ]
    if question.use:
        told.append(f"python {shlex.quote(question.use)} {shlex.quote(out)}")
    return told


def pod(name: str, question: Question) -> dict[str, Any]:
    """The pod that runs the commands; fits pod security level "restricted"."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "activeDeadlineSeconds": int(LIMIT_SECONDS),
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "runAsGroup": 65532,
                "fsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "proof",
                    "image": question.image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["sh", "-ec", "\n".join(commands(question))],
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                    "volumeMounts": [{"name": "claim", "mountPath": MOUNT}],
                }
            ],
            "volumes": [{"name": "claim", "persistentVolumeClaim": {"claimName": question.claim}}],
        },
    }


def read(log: str) -> Answer:
    """What the pod's log says.

    Raises:
        DemoError: a line is missing; the text is the whole log.
    """
    audit: dict[str, Any] = {}
    others: list[str] = []
    for line in log.splitlines():
        if line.startswith("{"):
            audit = json.loads(line)
        elif line.strip():
            others.append(line.strip())
    if not audit or not others:
        raise DemoError(f"the check of the run's results said something else than expected:\n{log}")
    return Answer(audit, others[0], others[1] if len(others) > 1 else "")


def sentence(answer: Answer) -> str:
    """The accounting in one sentence."""
    epochs = answer.audit.get("epochs", [])
    if answer.audit.get("ok"):
        counts = ", ".join(str(epoch["committed"]) for epoch in epochs)
        vain = answer.audit.get("uncommittedSamples", 0)
        return f"every sample exactly once per epoch ({counts}; {vain} more were handed out in vain and trained again)"
    missing = sum(epoch["missing"] for epoch in epochs)
    twice = sum(epoch["duplicated"] for epoch in epochs)
    problems = "; ".join(answer.audit.get("problems", []))
    return f"the samples do NOT add up: {missing} missing, {twice} twice. {problems}"
