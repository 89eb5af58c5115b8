"""Each rule of the CRDs refuses what it should, with the sentence that it should, on a real API server."""

import copy
from typing import Any

import pytest

from fdl_api import coverage, crd

from .harness import ApiServer

RUNS = "/apis/fdl.dev/v1alpha1/namespaces/{}/fdlruns"
CLUSTERS = "/apis/fdl.dev/v1alpha1/fdlclusters"

SMALL: dict[str, Any] = {
    "apiVersion": "fdl.dev/v1alpha1",
    "kind": "FdlRun",
    "metadata": {"name": "run"},
    "spec": {
        "trainer": {"source": {"configMap": {"name": "script"}}},
        "cohorts": [{"name": "cpu", "vendor": "cpu", "replicas": 2}],
    },
}

CLUSTER: dict[str, Any] = {
    "apiVersion": "fdl.dev/v1alpha1",
    "kind": "FdlCluster",
    "metadata": {"name": "default"},
    "spec": {
        "variants": [
            {"name": "cpu", "vendor": "cpu", "image": "fdl/trainer:cpu"},
            {"name": "cuda", "vendor": "nvidia", "image": "fdl/trainer:cuda", "archs": ["sm_80", "sm_90"]},
            {
                "name": "rocm",
                "vendor": "amd",
                "image": "fdl/trainer:rocm",
                "archs": ["gfx942"],
                "ncclVersion": "2.22.3",
                "ncclBridge": {"image": "fdl/rccl:1", "version": "2.27.3", "path": "/opt/librccl.so.1"},
            },
        ],
        "fabric": {"groups": [{"name": "east", "nodeSelector": {"zone": "e"}, "socketInterface": "ib0"}]},
        "defaults": {
            "tolerations": [{"key": "team", "operator": "Exists"}],
            "imagePullSecrets": ["registry"],
            "priorityClassName": "low",
        },
        "quarantine": {
            "nodes": [{"name": "n", "reason": "bad fan"}],
            "automatic": {"afterFailures": 3, "forSeconds": 3600},
            "taint": True,
        },
    },
}


def edited(manifest: dict[str, Any], *edits: tuple[str, Any]) -> dict[str, Any]:
    """A copy with values set; numbers in a path are list indices, and ``None`` removes a key."""
    result = copy.deepcopy(manifest)
    for path, value in edits:
        *steps, last = path.split(".")
        at: Any = result
        for step in steps:
            at = at[int(step)] if step.isdigit() else at.setdefault(step, {})
        key: Any = int(last) if last.isdigit() else last
        if value is None:
            at.pop(key)
        else:
            at[key] = value
    return result


def cohort(name: str, vendor: str = "cpu", **more: Any) -> dict[str, Any]:
    return {"name": name, "vendor": vendor, **more}


TWO_VENDORS = [cohort("a", "nvidia"), cohort("b", "amd")]
REFUSED: list[tuple[str, tuple[tuple[str, Any], ...], str]] = [
    # --- names
    (
        "name-digit-first",
        (("metadata.name", "1run"),),
        "metadata.name: becomes the name of a Service, so it must start with a letter",
    ),
    (
        "name-with-dot",
        (("metadata.name", "a.b"),),
        "metadata.name: becomes the name of a Service, so it must start with a letter",
    ),
    (
        "name-46",
        (("metadata.name", "r" * 46),),
        "metadata.name: too long, since the coordinator's name (<run>-coordinator-99999)",
    ),
    (
        "name-and-cohort",
        (("metadata.name", "r" * 32), ("spec.cohorts.0.name", "c" * 20)),
        "too long, since the longest name of a member (<run>-<cohort>-9999-99999) has more than 63 characters; shorten",
    ),
    # --- cohorts
    (
        "one rank over all devices and NCCL",
        (("spec.mode", "nccl-cadence"), ("spec.cohorts.0.rankSpans", "member")),
        "spec.cohorts[].rankSpans: a rank that spans its member averages in the host's memory; use 'device', or a "
        "mode that starts with cpu-",
    ),
    (
        "one rank over all devices and gradients",
        (("spec.mode", "cpu-sync"), ("spec.elche.average", "gradients"), ("spec.cohorts.0.rankSpans", "member")),
        "spec.cohorts[].rankSpans: a rank that spans its member averages parameters only; use 'device', or set "
        "spec.elche.average to parameters and leave averageStateEvery out",
    ),
    (
        "no-member",
        (("spec.cohorts.0.replicas", 0),),
        "spec.cohorts: no cohort may have a member; set replicas or maxReplicas",
    ),
    (
        "too-many-members",
        (("spec.cohorts", [cohort(n, maxReplicas=1000) for n in "abc"]),),
        "spec.cohorts: more than 2000 members in all; lower replicas or maxReplicas",
    ),
    (
        "two-of-one-name",
        (("spec.cohorts", [cohort("a"), cohort("a")]),),
        "spec.cohorts: two cohorts have the same name; give each its own name",
    ),
    (
        "min-above-replicas",
        (("spec.cohorts.0.minReplicas", 3),),
        "minReplicas is above replicas; lower minReplicas or raise replicas",
    ),
    (
        "replicas-above-max",
        (("spec.cohorts.0.maxReplicas", 1),),
        "replicas is above maxReplicas; lower replicas or raise maxReplicas",
    ),
    (
        "min-above-max",
        (("spec.cohorts.0.minReplicas", 5), ("spec.cohorts.0.maxReplicas", 4)),
        "minReplicas is above maxReplicas; lower minReplicas or raise maxReplicas",
    ),
    (
        "device-of-cpu",
        (("spec.cohorts.0.deviceResource", "nvidia.com/gpu"),),
        "spec.cohorts[].deviceResource: a cohort of vendor cpu has no device; remove deviceResource",
    ),
    # --- modes
    (
        "nccl-two-vendors",
        (("spec.mode", "nccl-cadence"), ("spec.cohorts", TWO_VENDORS)),
        "spec.mode: NCCL and RCCL cannot work together, so an nccl mode needs cohorts of one vendor; use 'cpu-cadence'",
    ),
    (
        "nccl-cpu",
        (("spec.mode", "nccl-sync"),),
        "spec.mode: an nccl mode needs devices, but a cohort has vendor cpu; use 'cpu-cadence'",
    ),
    # --- trainer
    (
        "no-source",
        (("spec.trainer.source", {}),),
        "spec.trainer.source: set exactly one of image, configMap and volume",
    ),
    (
        "two-sources",
        (("spec.trainer.source.image", {"path": "/app/train.py"}),),
        "spec.trainer.source: set exactly one of image, configMap and volume",
    ),
    (
        "reserved-env",
        (("spec.trainer.env", [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]),),
        "is set by fdl for each rank; remove it (devices come from spec.cohorts[].devicesPerReplica",
    ),
    (
        "own-env",
        (("spec.trainer.env", [{"name": "FDL_MEMBER", "value": "x"}]),),
        "is set by fdl for each rank; remove it",
    ),
    (
        "env-value-twice",
        (
            (
                "spec.trainer.env",
                [{"name": "A", "value": "x", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
            ),
        ),
        "spec.trainer.env[]: set value or valueFrom, not both",
    ),
    (
        "env-from-nowhere",
        (("spec.trainer.env", [{"name": "A", "valueFrom": {}}]),),
        "spec.trainer.env[].valueFrom: set exactly one of secretKeyRef and configMapKeyRef",
    ),
    # --- join, elche, data, failures
    (
        "min-members",
        (("spec.join.minMembers", 3),),
        "spec.join.minMembers: more than all cohorts together may have; lower it",
    ),
    (
        "target-below-min",
        (("spec.join", {"minMembers": 2, "targetMembers": 1}),),
        "spec.join.targetMembers: must be at least minMembers; raise targetMembers or lower minMembers",
    ),
    (
        "cap-below-window",
        (("spec.join", {"windowSeconds": 60, "capSeconds": 30}),),
        "spec.join.capSeconds: must be at least windowSeconds; raise capSeconds or lower windowSeconds",
    ),
    (
        "manual-target",
        (("spec.join", {"start": "manual", "targetMembers": 2}),),
        "spec.join.targetMembers: has no effect with start manual; remove it or use start hybrid",
    ),
    (
        "anchor",
        (("spec.elche", {"anchor": 11, "maxAnchor": 10}),),
        "spec.elche.anchor: must be at most maxAnchor; lower anchor or raise maxAnchor",
    ),
    (
        "min-anchor",
        (("spec.elche", {"minAnchor": 11}),),
        "spec.elche.minAnchor: must be at most anchor; lower minAnchor or raise anchor",
    ),
    (
        "audit",
        (("spec.data.audit", True),),
        "spec.data.audit: the audit is written to the checkpoint claim; set spec.checkpoint.claim",
    ),
    *(
        (
            f"max-failures-{value}",
            (("spec.failurePolicy.maxFailures", value),),
            "spec.failurePolicy.maxFailures: must be a number of members from 1 to 10000 or a percentage",
        )
        for value in (0, 10001, "0%", "101%", "3", "half", "")
    ),
    # --- not in this release
    (
        "git",
        (("spec.trainer.source", {"git": {"url": "https://example.com/x", "path": "train.py"}}),),
        "spec.trainer.source.git: this field is not available in this release; use spec.trainer.source.image",
    ),
    (
        "revision",
        (("spec.trainer.source", {"revision": {"name": "r1", "path": "train.py"}}),),
        "spec.trainer.source.revision: this field is not available in this release; use spec.trainer.source.image",
    ),
    (
        "manual",
        (("spec.join.start", "manual"),),
        "spec.join.start: 'manual' is not available in this release; use 'auto'",
    ),
    (
        "hybrid",
        (("spec.join.start", "hybrid"),),
        "spec.join.start: 'hybrid' is not available in this release; use 'auto'",
    ),
    (
        "walk-ins",
        (("spec.join.walkIns", True),),
        "spec.join.walkIns: 'true' is not available in this release; leave it out",
    ),
    (
        "ratios",
        (("spec.elche.partitionRatios", [0.5, 0.4]),),
        "spec.elche.partitionRatios: must sum to 1; give each rank its part of the work",
    ),
    (
        "bf16",
        (("spec.mode", "nccl-cadence"), ("spec.elche.bf16Wire", True)),
        "spec.elche.bf16Wire: works in CPU modes only; leave it out or use a mode that starts with cpu-",
    ),
    (
        "easgd alpha",
        (("spec.mode", "cpu-cadence"), ("spec.elche.easgdAlpha", 0.5)),
        "spec.elche.easgdAlpha: has an effect in mode cpu-async only; leave it out or use that mode",
    ),
    (
        "optimizer state in async",
        (("spec.mode", "cpu-async"), ("spec.elche.averageStateEvery", 5)),
        "spec.elche.averageStateEvery: not in mode cpu-async, where optimizers step while an average is made; "
        "leave it out or use mode cpu-cadence",
    ),
    (
        "gradients in async",
        (("spec.mode", "cpu-async"), ("spec.elche.average", "gradients"), ("spec.elche.maxAnchor", 20)),
        "spec.elche.average: gradients are of the last average, and in mode cpu-async ranks train on without it; "
        "use parameters, or mode cpu-cadence",
    ),
    (
        "gradients with long windows",
        (("spec.mode", "cpu-cadence"), ("spec.elche.average", "gradients")),
        "spec.elche.maxAnchor: with average gradients a window is one step, whose batch grows with the anchor; set "
        "maxAnchor to 64 or less, or use a sync mode",
    ),
    (
        "gradients and an outer optimizer",
        (("spec.mode", "cpu-sync"), ("spec.elche.average", "gradients"), ("spec.elche.outer.optimizer", "slowmo")),
        "spec.elche.outer.optimizer: with average gradients there is no way from average to average to put momentum "
        "on; set it to none, or average to parameters",
    ),
    (
        "gradients with weights",
        (("spec.mode", "cpu-sync"), ("spec.elche.average", "gradients"), ("spec.elche.weights", "uniform")),
        "spec.elche.weights: the mean gradient of a window weighs by samples; leave weights and gamma out, or set "
        "average to parameters",
    ),
    (
        "gradients and optimizer state",
        (("spec.mode", "cpu-sync"), ("spec.elche.average", "gradients"), ("spec.elche.averageStateEvery", 2)),
        "spec.elche.averageStateEvery: with average gradients all optimizers take the same steps; leave it out",
    ),
    (
        "overshoot",
        (("spec.mode", "cpu-cadence"), ("spec.elche.maxOvershoot", 3)),
        "spec.elche.maxOvershoot: has an effect in mode cpu-async only; leave it out or use that mode",
    ),
    (
        "gamma",
        (("spec.elche.weights", "uniform"), ("spec.elche.gamma", 0.5)),
        "spec.elche.gamma: has no effect with these weights; leave it out or set weights to samples or batches",
    ),
    (
        "outer rate",
        (("spec.elche.outer", {"optimizer": "none", "learningRate": 0.5}),),
        "spec.elche.outer.learningRate: has no effect without an outer optimizer; set optimizer to slowmo or nesterov, "
        "or remove learningRate",
    ),
    (
        "outer",
        (("spec.elche.outer", {"momentum": 0.5}),),
        "spec.elche.outer.momentum: has no effect without an outer optimizer; set optimizer to slowmo or nesterov, or "
        "remove momentum",
    ),
    (
        "strict",
        (("spec.network.policy", "strict"),),
        "spec.network.policy: 'strict' is not available in this release; use 'basic'",
    ),
    (
        "queue",
        (("spec.scheduling.queueName", "q"),),
        "spec.scheduling.queueName: this field is not available in this release",
    ),
    (
        "pod-group",
        (("spec.scheduling.podGroup", True),),
        "spec.scheduling.podGroup: 'true' is not available in this release",
    ),
    (
        "topology",
        (("spec.scheduling.topology", "zone"),),
        "spec.scheduling.topology: this field is not available in this release",
    ),
]

LEGACY_VALUES: dict[str, Any] = {
    "master_addr": "10.0.0.1",
    "master_port": 29500,
    "hosts": [{"name": "a", "local_devices": [0]}],
    "ranks": [0, 1],
    "libtorch_path": "/opt/libtorch",
    "ssh_target": "user@host",
    "ssh_port": 22,
    "ssh_user": "user",
    "ssh_identity_file": "~/.ssh/id",
    "ssh_options": ["-v"],
}
OF_HOSTS = ("ranks", "libtorch_path", "ssh_target", "ssh_port", "ssh_user", "ssh_identity_file", "ssh_options")
LEGACY = [
    *((f"spec.{key}", f"spec.{key}", value) for key, value in LEGACY_VALUES.items()),
    *((f"spec.cohorts.0.{key}", f"spec.cohorts[].{key}", LEGACY_VALUES[key]) for key in OF_HOSTS),
]

BAD_VALUES = [
    ("spec.mode", "cpu-fast", 'spec.mode: Unsupported value: "cpu-fast": supported values: "nccl-sync"'),
    ("spec.cohorts", [], "spec.cohorts: Invalid value: 0: spec.cohorts in body should have at least 1 items"),
    ("spec.cohorts.0.vendor", "intel", "spec.cohorts[0].vendor: Unsupported value"),
    ("spec.cohorts.0.name", "Cpu-A", "spec.cohorts[0].name: Invalid value"),
    ("spec.cohorts.0.replicas", 1001, "spec.cohorts[0].replicas: Invalid value"),
    ("spec.cohorts.0.replicas", -1, "spec.cohorts[0].replicas: Invalid value"),
    ("spec.checkpoint", {"claim": "c", "keep": 0}, "spec.checkpoint.keep: Invalid value"),
    ("spec.checkpoint", {"keep": 2}, "spec.checkpoint.claim: Required value"),
    ("spec.trainer", None, "spec.trainer: Required value"),
    ("spec.elche.overheadTarget", 0.6, "spec.elche.overheadTarget: Invalid value"),
    (
        "spec.cohorts.0.resources",
        {"limits": {"memory": "2 GB"}},
        "spec.cohorts[0].resources.limits.memory: Invalid value",
    ),
    ("spec.data.mountPath", "data", "spec.data.mountPath: Invalid value"),
]

NO_IMAGES = (
    "x y",
    "team/UPPER:1",
    "a:b:c",
    "a@sha256:12",
    "/a",
    "a/",
    "http://a/b",
    "a:",
    " a",
    "a\n",
    "-a",
    "a//b",
    "é",
    "registry..example/a",
    "registry.-example/a",
    "a@sha256:" + "0a" * 20,
    "a@sha256:" + "0A" * 32,
    "a@sha512:" + "0a" * 32,
    "a@md5:" + "0a" * 16,
)
IMAGES = (
    "a",
    "trainer:1",
    "localhost:5000/a",
    "Registry.example:5000/team/sub-team/a_b__c--d.e:V1.0_x",
    "[fd00::1]:5000/a:1",
    "r.example/a@sha256:" + "0a" * 32,
    "r.example/a:1@sha256:" + "0a" * 32,
    "r.example/a@sha512:" + "0a" * 64,
)
REFUSED += [
    (f"image {name!r} of the {part}", ((path, name),), f"{told}: is no name of an image, such as")
    for part, path, told in (
        ("trainer", "spec.trainer.image", "spec.trainer.image"),
        ("cohort", "spec.cohorts.0.image", "spec.cohorts[].image"),
    )
    for name in NO_IMAGES
]

NO_ARCHS = ("sm_", "sm_9", "sm_9000", "sm_90x", "compute_", "gfx942", "sm-90", "90")
NO_AMD_ARCHS = ("gfx", "gfx9", "gfx9xy", "sm_90", "gfx_942")
ARCHS = ("sm_50", "sm_90", "sm_90a", "sm_100f", "compute_90", "compute_120")
AMD_ARCHS = ("gfx90a", "gfx942", "gfx1030", "gfx1201")
ARCH_SENTENCE = (
    "spec.variants[].archs: names are as torch.cuda.get_arch_list() has them, such as sm_90 and compute_90 for "
    "vendor nvidia and gfx942 for vendor amd; correct archs or vendor"
)

CLUSTER_REFUSED: list[tuple[str, tuple[tuple[str, Any], ...], str]] = [
    *(
        (
            f"image {name!r}",
            (("spec.variants.0.image", name),),
            "spec.variants[].image: is no name of an image, such as",
        )
        for name in NO_IMAGES
    ),
    (
        "image of a bridge",
        (("spec.variants.2.ncclBridge.image", "x y"),),
        "spec.variants[].ncclBridge.image: is no name of an image, such as",
    ),
    *((f"arch {arch}", (("spec.variants.1.archs", ["sm_80", arch]),), ARCH_SENTENCE) for arch in NO_ARCHS),
    *((f"AMD's arch {arch}", (("spec.variants.2.archs", [arch]),), ARCH_SENTENCE) for arch in NO_AMD_ARCHS),
    (
        "name",
        (("metadata.name", "other"),),
        "metadata.name: a cluster has one FdlCluster, named 'default'; edit that one",
    ),
    (
        "auto",
        (("spec.variants.0.name", "auto"),),
        "spec.variants[].name: 'auto' stands for fdl's own choice; give the variant another name",
    ),
    (
        "no-archs",
        (("spec.variants.1.archs", None),),
        "spec.variants[].archs: list what the variant's torch has kernels for",
    ),
    (
        "archs-of-cpu",
        (("spec.variants.0.archs", ["sm_90"]),),
        "spec.variants[].archs: list what the variant's torch has kernels for",
    ),
    (
        "wrong-archs",
        (("spec.variants.1.archs", ["gfx942"]),),
        ARCH_SENTENCE,
    ),
    (
        "bridge-of-cpu",
        (("spec.variants.0.ncclBridge", {"image": "i", "version": "2.28.3"}),),
        "spec.variants[].ncclBridge: a variant of vendor cpu loads no NCCL; leave ncclBridge out",
    ),
    (
        "dashboard",
        (("spec.dashboard", {}),),
        "spec.dashboard: this field is not available in this release; leave it out",
    ),
]

FULL: dict[str, Any] = edited(
    SMALL,
    ("spec.replicas", 2),
    ("spec.trainer.image", "example.com/trainer:1"),
    ("spec.trainer.args", ["--epochs", "2"]),
    ("spec.trainer.env", [{"name": "A", "value": "1"}]),
    ("spec.trainer.resources", {"requests": {"cpu": "500m"}, "limits": {"memory": "1Gi", "cpu": 2}}),
    (
        "spec.cohorts.0",
        {
            **cohort("cpu", "nvidia", replicas=2, minReplicas=1, maxReplicas=4, devicesPerReplica=2),
            "deviceResource": "nvidia.com/gpu",
            "variant": "cuda",
            "image": "example.com/trainer:2",
            "nodeSelector": {"zone": "a"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "allowSimulated": True,
            "resources": {"limits": {"memory": "2Gi"}},
            "podTemplate": {"metadata": {"labels": {"team": "x"}}, "spec": {"hostNetwork": False, "x": [{"y": 1}]}},
        },
    ),
    ("spec.join", {"minMembers": 1, "targetMembers": 2, "windowSeconds": 10, "capSeconds": 100}),
    ("spec.elche.minAnchor", 5),
    ("spec.elche.maxBatchDiff", 10),
    ("spec.elche.partitionRatios", [0.7, 0.2, 0.1]),
    ("spec.elche.metaController", True),
    ("spec.elche.guard", "growth"),
    ("spec.elche.outer", {"optimizer": "nesterov", "learningRate": 0.7, "momentum": 0.9}),
    ("spec.data", {"claim": "data", "mountPath": "/data", "sentinel": "ok", "audit": True}),
    ("spec.checkpoint", {"claim": "checkpoints", "intervalSeconds": 60, "keep": 2}),
    ("spec.failurePolicy", {"maxFailures": "50%", "onExceeded": "Fail", "budgets": {"app": 1, "preemption": 9}}),
    ("spec.runPolicy", {"ttlSecondsAfterFinished": 60, "activeDeadlineSeconds": 3600}),
    ("spec.network.policy", "none"),
    ("spec.scheduling.priorityClassName", "high"),
)

FROZEN: list[tuple[str, Any]] = [
    ("spec.trainer.image", "example.com/trainer:9"),
    ("spec.trainer.source.configMap", {"name": "other"}),
    ("spec.trainer.args", ["--epochs", "3"]),
    ("spec.trainer.env", [{"name": "A", "value": "2"}]),
    ("spec.trainer.resources.requests", {"cpu": "600m"}),
    ("spec.trainer.resources.limits", {"memory": "1Gi", "cpu": 3}),
    ("spec.mode", "cpu-sync"),
    ("spec.cohorts.1", None),
    ("spec.cohorts.0.vendor", "amd"),
    ("spec.cohorts.0.devicesPerReplica", 1),
    ("spec.cohorts.0.rankSpans", "member"),
    ("spec.cohorts.0.deviceResource", "nvidia.com/mig-1g.5gb"),
    ("spec.cohorts.0.variant", "auto"),
    ("spec.cohorts.0.image", None),
    ("spec.cohorts.0.nodeSelector", {"zone": "b"}),
    ("spec.cohorts.0.tolerations", None),
    ("spec.cohorts.0.allowSimulated", False),
    ("spec.cohorts.0.resources", {"limits": {"memory": "3Gi"}}),
    ("spec.cohorts.0.podTemplate.spec.x.0.y", 2),
    ("spec.join.minMembers", 2),
    ("spec.join.targetMembers", None),
    ("spec.join.windowSeconds", 11),
    ("spec.join.capSeconds", 101),
    ("spec.elche.anchor", 20),
    ("spec.elche.minAnchor", 6),
    ("spec.elche.maxAnchor", 100),
    ("spec.elche.overheadTarget", 0.1),
    ("spec.elche.deadZone", 0.1),
    ("spec.elche.maxBatchDiff", None),
    ("spec.elche.relaxUp", True),
    ("spec.elche.guard", "none"),
    ("spec.elche.divergenceThreshold", 0.3),
    ("spec.elche.partitionRatios", [0.6, 0.3, 0.1]),
    ("spec.elche.metaController", False),
    ("spec.elche.weights", "batches"),
    ("spec.elche.gamma", 0.5),
    ("spec.elche.outer.optimizer", "slowmo"),
    ("spec.elche.outer.learningRate", 0.8),
    ("spec.elche.outer.momentum", 0.4),
    ("spec.elche.bf16Wire", True),
    ("spec.data.claim", "other"),
    ("spec.data.mountPath", "/other"),
    ("spec.data.sentinel", None),
    ("spec.data.audit", False),
    ("spec.checkpoint", {"claim": "other"}),
    ("spec.failurePolicy.maxFailures", 2),
    ("spec.failurePolicy.onExceeded", "ShutdownWithSave"),
    ("spec.failurePolicy.budgets.app", 2),
    ("spec.failurePolicy.budgets.infrastructure", 2),
    ("spec.failurePolicy.budgets.preemption", None),
    ("spec.runPolicy.cleanPodPolicy", "All"),
    ("spec.network.policy", "basic"),
    ("spec.scheduling.priorityClassName", None),
    ("spec.elche.easgdAlpha", 0.5),
    ("spec.elche.maxOvershoot", 1),
    ("spec.elche.averageStateEvery", 5),
    ("spec.elche.average", "gradients"),
    # These cannot have another allowed value in this release; both rules speak.
    ("spec.trainer.source.image", {"path": "/x.py"}),
    ("spec.trainer.source.volume", {"claim": "c", "path": "x.py"}),
    ("spec.trainer.source.git", {"url": "https://example.com/x", "path": "x.py"}),
    ("spec.trainer.source.revision", {"name": "r", "path": "x.py"}),
    ("spec.join.start", "hybrid"),
    ("spec.join.walkIns", True),
    ("spec.scheduling.queueName", "q"),
    ("spec.scheduling.podGroup", True),
    ("spec.scheduling.topology", "zone"),
]

MUTABLE: list[tuple[str, Any]] = [
    ("spec.replicas", 3),
    ("spec.replicas", None),
    ("spec.cohorts.0.replicas", 3),
    ("spec.cohorts.0.minReplicas", 2),
    ("spec.cohorts.0.maxReplicas", 8),
    ("spec.runPolicy.suspend", True),
    ("spec.runPolicy.ttlSecondsAfterFinished", None),
    ("spec.runPolicy.activeDeadlineSeconds", 7200),
    ("spec.runPolicy.startupDeadlineSeconds", 60),
    ("spec.runPolicy.allowFreshStart", True),
]


def general(path: str) -> str:
    """The path as rules write it, e.g. ``spec.cohorts[].image``; a whole cohort and an overlay are one field."""
    field, overlay, _ = path.partition(".podTemplate")
    steps = field.split(".")
    if steps[-1].isdigit() and not overlay:
        return ".".join(steps[:-1])
    return ".".join("[]" if step.isdigit() else step for step in steps).replace(".[]", "[]") + overlay


@pytest.mark.parametrize("edits,sentence", [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_a_bad_run_is_refused_with_its_sentence(
    crds: ApiServer, namespace: str, edits: tuple[tuple[str, Any], ...], sentence: str
) -> None:
    answer = crds.request("POST", RUNS.format(namespace), edited(SMALL, *edits), fieldValidation="Strict")
    assert answer.code == 422
    assert sentence in answer.message


@pytest.mark.parametrize("path,named,value", LEGACY, ids=[case[1] for case in LEGACY])
def test_a_key_of_flodl_is_refused_with_its_successor(
    crds: ApiServer, namespace: str, path: str, named: str, value: Any
) -> None:
    for validation in ("Strict", "Ignore"):
        answer = crds.request("POST", RUNS.format(namespace), edited(SMALL, (path, value)), fieldValidation=validation)
        assert answer.code == 422
        assert f"{named}: is a key of floDl, not of FdlRun; " in answer.message


@pytest.mark.parametrize("path,value,sentence", BAD_VALUES)
def test_a_value_out_of_bounds_is_refused_with_its_place(
    crds: ApiServer, namespace: str, path: str, value: Any, sentence: str
) -> None:
    answer = crds.request("POST", RUNS.format(namespace), edited(SMALL, (path, value)))
    assert answer.code == 422
    assert sentence in answer.message


@pytest.mark.parametrize(
    "edits,sentence", [case[1:] for case in CLUSTER_REFUSED], ids=[case[0] for case in CLUSTER_REFUSED]
)
def test_a_bad_cluster_is_refused_with_its_sentence(
    crds: ApiServer, edits: tuple[tuple[str, Any], ...], sentence: str
) -> None:
    answer = crds.request("POST", CLUSTERS, edited(CLUSTER, *edits), fieldValidation="Strict", dryRun="All")
    assert answer.code == 422
    assert sentence in answer.message


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.fabric.groups.0.socketInterface", "^docker0"),
        ("spec.fabric.groups.0.socketInterface", "eth0,eth1"),
        ("spec.fabric.groups.0.socketInterface", "sixteen-letters0"),
        ("spec.variants.2.ncclBridge.version", "2"),
        ("spec.variants.2.ncclBridge.path", "lib/librccl.so"),
        ("spec.variants.2.ncclBridge.path", "/opt/lib/"),
        ("spec.quarantine.automatic.afterFailures", 0),
        ("spec.quarantine.automatic.forSeconds", 10),
    ],
)
def test_a_value_of_a_cluster_out_of_bounds_is_refused_with_its_place(crds: ApiServer, path: str, value: Any) -> None:
    answer = crds.request("POST", CLUSTERS, edited(CLUSTER, (path, value)), dryRun="All")
    assert answer.code == 422
    assert path.replace(".0.", "[0].").replace(".2.", "[2].") in answer.message


@pytest.mark.parametrize("name", IMAGES)
def test_every_name_that_a_container_runtime_takes_is_taken(crds: ApiServer, namespace: str, name: str) -> None:
    run = edited(SMALL, ("spec.trainer.image", name), ("spec.cohorts.0.image", name))
    bridge = ("spec.variants.2.ncclBridge.image", name)
    cluster = edited(CLUSTER, ("spec.variants.0.image", name), bridge)
    crds.request("DELETE", f"{CLUSTERS}/default")  # an operator of an earlier test may have made it
    for where, manifest in ((RUNS.format(namespace), run), (CLUSTERS, cluster)):
        answer = crds.request("POST", where, manifest, dryRun="All")
        assert (answer.code, answer.message) == (201, "")


def test_every_architecture_that_torch_names_is_taken(crds: ApiServer) -> None:
    crds.request("DELETE", f"{CLUSTERS}/default")
    full = edited(CLUSTER, ("spec.variants.1.archs", [*ARCHS]), ("spec.variants.2.archs", [*AMD_ARCHS]))
    answer = crds.request("POST", CLUSTERS, full, dryRun="All")
    assert (answer.code, answer.message) == (201, "")
    assert all(coverage.parse(arch) for arch in (*ARCHS, *AMD_ARCHS))


@pytest.fixture(scope="module")
def full_run(crds: ApiServer) -> dict[str, Any]:
    """A run with every field set and a second cohort, as the server stored it; tests only dry-run edits of it."""
    crds.request("POST", "/api/v1/namespaces", {"metadata": {"name": "full"}})
    manifest = edited(FULL, ("spec.cohorts", [*FULL["spec"]["cohorts"], cohort("more", replicas=1)]))
    answer = crds.request("POST", RUNS.format("full"), manifest, fieldValidation="Strict")
    assert answer.code == 201, answer.message
    return answer.body


def put(server: ApiServer, manifest: dict[str, Any]) -> tuple[int, str]:
    where = f"{RUNS.format('full')}/run"
    answer = server.request("PUT", where, manifest, dryRun="All", fieldValidation="Strict")
    return answer.code, answer.message


@pytest.mark.parametrize("path,value", FROZEN, ids=[path for path, _ in FROZEN])
def test_an_edit_of_a_running_run_is_refused(crds: ApiServer, full_run: dict[str, Any], path: str, value: Any) -> None:
    code, message = put(crds, edited(full_run, (path, value)))
    assert code == 422
    sentence = "cannot be changed after creation, only replicas and most of spec.runPolicy can; undo the edit"
    assert f"{general(path)}: {sentence}" in message


@pytest.mark.parametrize("path,value", MUTABLE, ids=[f"{path}-{value}" for path, value in MUTABLE])
def test_what_may_change_can_change(crds: ApiServer, full_run: dict[str, Any], path: str, value: Any) -> None:
    assert put(crds, edited(full_run, (path, value))) == (200, "")


def test_a_cohort_cannot_be_added_or_reordered(crds: ApiServer, full_run: dict[str, Any]) -> None:
    both = full_run["spec"]["cohorts"]
    for cohorts in ([*both, cohort("third")], both[::-1]):
        code, message = put(crds, edited(full_run, ("spec.cohorts", cohorts)))
        assert (code, "spec.cohorts: cannot be changed after creation" in message) == (422, True)


def test_what_the_bad_ones_are_edits_of_is_good(crds: ApiServer, namespace: str) -> None:
    crds.request("DELETE", f"{CLUSTERS}/default")  # an operator of an earlier test may have made it
    for where, manifest in ((RUNS.format(namespace), SMALL), (RUNS.format(namespace), FULL), (CLUSTERS, CLUSTER)):
        answer = crds.request("POST", where, manifest, fieldValidation="Strict", dryRun="All")
        assert (answer.code, answer.message) == (201, "")


def test_every_rule_has_a_case() -> None:
    """A rule without a case above would never have been seen to work."""
    sentences = [case[2] for case in (*REFUSED, *CLUSTER_REFUSED)]
    sentences += [f"{named}: is a key of floDl" for _, named, _ in LEGACY]
    frozen = {general(path) for path, _ in FROZEN}
    for manifest in (crd.run_crd(), crd.cluster_crd()):
        for rule in crd.rules_of(manifest):
            if "oldSelf" in rule["rule"]:
                assert rule["message"].split(":")[0] in frozen, rule
            else:
                said = rule["message"] + rule.get("messageExpression", "")
                assert any(sentence in said for sentence in sentences), rule
