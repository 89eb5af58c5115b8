"""Builders of the objects that the tests apply."""

from typing import Any

EXAMPLES = "fdl.local/examples:dev"
DIGITS = "/opt/fdl/examples/digits/train.py"
CLAIM = "work"


def digits(
    name: str, *, members: int = 3, epochs: int = 6, batch_size: int = 16, width: int = 32, **spec: Any
) -> dict[str, Any]:
    """A run of the digits example on CPU members.

    Args:
        name: name of the run.
        members: CPU members, spread over nodes.
        epochs, batch_size, width: arguments of the script.
        spec: fields of the spec that replace the builder's, e.g. ``checkpoint=None``; None leaves a field out.
    """
    arguments = ["--epochs", str(epochs), "--batch-size", str(batch_size), "--width", str(width)]
    base: dict[str, Any] = {
        "mode": "cpu-cadence",
        "trainer": {"image": EXAMPLES, "source": {"image": {"path": DIGITS}}, "args": arguments},
        "cohorts": [cpu_cohort(name, members)],
        "checkpoint": {"claim": CLAIM, "intervalSeconds": 5},
        "data": {"audit": True},
    }
    return fdl_run(name, {key: value for key, value in {**base, **spec}.items() if value is not None})


def script(name: str, config_map: str, *, members: int = 1, **spec: Any) -> dict[str, Any]:
    """A run of a script from a ConfigMap, key train.py."""
    trainer = {"image": EXAMPLES, "source": {"configMap": {"name": config_map}}}
    return digits(name, members=members, **{"trainer": trainer, "checkpoint": None, "data": None, **spec})


def cpu_cohort(run: str, members: int, name: str = "cpu", *, one_a_node: bool = False) -> dict[str, Any]:
    """A cohort of CPU members on the nodes without simulated devices.

    Args:
        run: name of the run.
        members: how many.
        name: name of the cohort.
        one_a_node: True forbids two members on a node; otherwise the scheduler only prefers to spread them.
    """
    real = {"matchExpressions": [{"key": "fdl.dev/simulated", "operator": "DoesNotExist"}]}
    spread = {
        "topologyKey": "kubernetes.io/hostname",
        "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule" if one_a_node else "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"fdl.dev/run": run, "fdl.dev/role": "member"}},
    }
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [real]}}
    spec = {"affinity": {"nodeAffinity": required}, "topologySpreadConstraints": [spread]}
    return {"name": name, "vendor": "cpu", "replicas": members, "podTemplate": {"spec": spec}}


def fdl_run(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """An FdlRun."""
    return {"apiVersion": "fdl.dev/v1alpha1", "kind": "FdlRun", "metadata": {"name": name}, "spec": spec}


def claim(name: str = CLAIM, size: str = "1Gi") -> dict[str, Any]:
    """A claim that all nodes can mount."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "fdl-local",
            "resources": {"requests": {"storage": size}},
        },
    }


def tool_pod(name: str, command: list[str], claim_name: str = CLAIM, read_only: bool = False) -> dict[str, Any]:
    """A pod of the trainer's image with the checkpoint claim at /claim."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "enableServiceLinks": False,
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "runAsGroup": 65532,
                "fsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "tool",
                    "image": EXAMPLES,
                    "imagePullPolicy": "IfNotPresent",
                    "command": command,
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                    "volumeMounts": [{"name": "claim", "mountPath": "/claim", "readOnly": read_only}],
                }
            ],
            "volumes": [{"name": "claim", "persistentVolumeClaim": {"claimName": claim_name}}],
        },
    }
