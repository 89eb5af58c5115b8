"""Pods of a run: the coordinator and its members. Bare, never restarted: one pod is one incarnation."""

from fdl_api import labels, names
from fdl_api.cluster import RunDefaults
from fdl_api.placement import Placement
from fdl_api.run import Cohort, FdlRunSpec, Resources, Vendor
from fdl_api.runconfig import MemberEnv
from fdl_operator.build import network
from fdl_operator.build.common import CONTAINER_SECURITY, POD_SECURITY, Body, metadata
from fdl_operator.build.overlay import merge_pod
from fdl_operator.model import OFF_DEVICES, CreateCoordinator, CreateMember, RunRecord
from fdl_operator.settings import Settings

PLACEMENT = labels.DOMAIN + "placement"
"""Annotation: hash of the placement that a member's pod was built from."""
VARIANT = labels.DOMAIN + "variant"
"""Annotation: trainer variant of a member's pod."""

GRACE_SECONDS = 60
AWAIT_AGENT = (
    "for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do "
    "while read -r key mask; do "
    '[ "$key" != SigBlk: ] || [ $((0x$mask & 0x4000)) -eq 0 ] || exit 0; '
    "done </proc/1/status; sleep 1; done"
)
"""Shell text that ends once process 1 has SIGTERM (bit 14) blocked, which is how the agent waits for it.

The kernel drops a SIGTERM for process 1 of a container that has neither handled nor blocked it. A pod that is deleted
while its Python starts would wait out its whole grace period.
"""
RUN_DIR = names.RUN_FILE.rpartition("/")[0]
SECRET_DIR = names.TOKEN_FILE.rpartition("/")[0]


NO_DEFAULTS = RunDefaults()


def member(
    run: RunRecord, spec: FdlRunSpec, action: CreateMember, settings: Settings, defaults: RunDefaults = NO_DEFAULTS
) -> Body:
    """One incarnation of a member; ``defaults`` are FdlCluster's for what the run does not say."""
    cohort = next(cohort for cohort in spec.cohorts if cohort.name == action.cohort)
    template = cohort.pod_template or {}
    grace = int((template.get("spec") or {}).get("terminationGracePeriodSeconds") or GRACE_SECONDS)
    bridge = action.placement.bridge
    volumes, mounts = _volumes(run, spec, bridged=bridge is not None)
    container: Body = {
        "name": names.TRAINER_CONTAINER,
        "image": action.placement.image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["python", "-m", "fdl_trainer.agent"],
        "env": _member_env(spec, action, grace),
        "resources": _resources(cohort, spec.trainer.resources),
        "volumeMounts": mounts,
        "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", AWAIT_AGENT]}}},
        "securityContext": CONTAINER_SECURITY,
    }
    extra = {
        labels.ROLE: labels.ROLE_MEMBER,
        labels.COHORT: action.cohort,
        labels.ORDINAL: str(action.ordinal),
        labels.INCARNATION: str(action.incarnation),
        labels.ATTEMPT: str(action.attempt),
    }
    pod = _pod(metadata(run, action.name, extra=extra), spec, settings, defaults)
    pod["metadata"]["annotations"] = {PLACEMENT: action.placement.digest, VARIANT: action.placement.variant}
    pod["spec"] |= {
        "containers": [container],
        "volumes": volumes,
        "terminationGracePeriodSeconds": grace,
        "tolerations": _tolerations(cohort, defaults),
    }
    if bridge is not None:
        pod["spec"]["initContainers"] = [network.bridge(bridge, settings)]
    node: Body = {}
    if required := _affinity(action.placement):
        node["requiredDuringSchedulingIgnoredDuringExecution"] = required
    if cohort.vendor is Vendor.CPU:
        node["preferredDuringSchedulingIgnoredDuringExecution"] = [_rather_without_devices()]
    if node:
        pod["spec"]["affinity"] = {"nodeAffinity": node}
    return merge_pod(pod, template) if template else pod


def coordinator(
    run: RunRecord,
    spec: FdlRunSpec,
    action: CreateCoordinator,
    settings: Settings,
    defaults: RunDefaults = NO_DEFAULTS,
) -> Body:
    """One incarnation of the coordinator. It asks for no device, and stays off nodes with any where it can."""
    env = {
        MemberEnv.RUN_FILE: names.RUN_FILE,
        MemberEnv.TOKEN_FILE: names.TOKEN_FILE,
        MemberEnv.CA_FILE: names.CA_FILE,
        MemberEnv.CERT_FILE: names.CERT_FILE,
        MemberEnv.KEY_FILE: names.KEY_FILE,
        MemberEnv.ATTEMPT: str(action.attempt),
        MemberEnv.GENERATION: str(action.incarnation),
    }
    container: Body = {
        "name": "coordinator",
        "image": settings.operator_image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["python", "-m", "fdl_coordinator"],
        "env": [
            *({"name": name, "value": value} for name, value in env.items()),
            _from_field("POD_IP", "status.podIP"),
        ],
        "ports": [{"name": "wire", "containerPort": names.COORDINATOR_PORT}],
        "readinessProbe": {
            "httpGet": {"path": "/healthz", "port": names.COORDINATOR_PORT, "scheme": "HTTPS"},
            "periodSeconds": 2,
            "failureThreshold": 3,
            "timeoutSeconds": 2,
        },
        # One that hangs is ended and replaced. Slow to judge: training goes on without it, and a busy node is no fault.
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": names.COORDINATOR_PORT, "scheme": "HTTPS"},
            "initialDelaySeconds": 30,
            "periodSeconds": 10,
            "failureThreshold": 4,
            "timeoutSeconds": 5,
        },
        "resources": settings.coordinator_resources,
        "volumeMounts": [
            {"name": "run", "mountPath": RUN_DIR, "readOnly": True},
            {"name": "secret", "mountPath": SECRET_DIR, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - a path in the container
        ],
        "securityContext": {**CONTAINER_SECURITY, "readOnlyRootFilesystem": True},
    }
    extra = {
        labels.ROLE: labels.ROLE_COORDINATOR,
        labels.INCARNATION: str(action.incarnation),
        labels.ATTEMPT: str(action.attempt),
    }
    pod = _pod(metadata(run, action.name, extra=extra), spec, settings, defaults)
    if action.off_devices:
        pod["metadata"]["annotations"] = {PLACEMENT: OFF_DEVICES}
        terms: Body = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_without_devices()]}}
    else:
        terms = {"preferredDuringSchedulingIgnoredDuringExecution": [_rather_without_devices()]}
    pod["spec"] |= {
        "containers": [container],
        "volumes": [
            {"name": "run", "configMap": {"name": names.config_map(run.name)}},
            {"name": "secret", "secret": {"secretName": names.secret(run.name), "defaultMode": 0o440}},
            {"name": "tmp", "emptyDir": {}},
        ],
        "terminationGracePeriodSeconds": 5,
        "affinity": {"nodeAffinity": terms},
    }
    return pod


def _without_devices() -> Body:
    return {
        "matchExpressions": [
            {"key": labels.vendor(vendor), "operator": "DoesNotExist"} for vendor in labels.GPU_VENDORS
        ]
    }


def _rather_without_devices() -> Body:
    return {"weight": 100, "preference": _without_devices()}


def _pod(meta: Body, spec: FdlRunSpec, settings: Settings, defaults: RunDefaults) -> Body:
    body: Body = {
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "securityContext": POD_SECURITY,
    }
    secrets = dict.fromkeys((*settings.image_pull_secrets, *defaults.image_pull_secrets))
    if secrets:
        body["imagePullSecrets"] = [{"name": secret} for secret in secrets]
    if priority := spec.scheduling.priority_class_name or defaults.priority_class_name:
        body["priorityClassName"] = priority
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": body}


def _member_env(spec: FdlRunSpec, action: CreateMember, grace: int) -> list[Body]:
    literals = {
        MemberEnv.RUN_FILE: names.RUN_FILE,
        MemberEnv.TOKEN_FILE: names.TOKEN_FILE,
        MemberEnv.CA_FILE: names.CA_FILE,
        MemberEnv.ATTEMPT: str(action.attempt),
        MemberEnv.MEMBER: action.name,
        MemberEnv.COHORT: action.cohort,
        MemberEnv.ORDINAL: str(action.ordinal),
        MemberEnv.INCARNATION: str(action.incarnation),
        MemberEnv.GRACE_SECONDS: str(grace),
    }
    cpu = {"resourceFieldRef": {"containerName": names.TRAINER_CONTAINER, "resource": "limits.cpu", "divisor": "1m"}}
    fdl = [
        *({"name": name, "value": value} for name, value in literals.items()),
        _from_field(MemberEnv.MEMBER_UID, "metadata.uid"),
        _from_field(MemberEnv.NODE, "spec.nodeName"),
        _from_field(MemberEnv.POD_IP, "status.podIP"),
        {"name": MemberEnv.CPU_LIMIT, "valueFrom": cpu},
    ]
    user = [entry.model_dump(mode="json", by_alias=True, exclude_none=True) for entry in spec.trainer.env]
    return fdl + network.variables(action.placement, user)


def _from_field(name: str, path: str) -> Body:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _resources(cohort: Cohort, default: Resources) -> Body:
    resources = (cohort.resources or default).model_dump(mode="json", by_alias=True)
    if cohort.vendor is not Vendor.CPU:
        device = cohort.device_resource or labels.DEVICE_RESOURCES[cohort.vendor]
        for part in ("requests", "limits"):
            resources.setdefault(part, {})[device] = str(cohort.devices_per_replica)
    return {part: entries for part, entries in resources.items() if entries}


def _tolerations(cohort: Cohort, defaults: RunDefaults) -> list[Body]:
    """The cohort's, and those of the defaults about other taints: of two about the same one, the cohort's wins."""
    said = {(entry.key, entry.effect) for entry in cohort.tolerations}
    more = [entry for entry in defaults.tolerations if (entry.key, entry.effect) not in said]
    entries = (*cohort.tolerations, *more)
    own = [entry.model_dump(mode="json", by_alias=True, exclude_none=True) for entry in entries]
    if cohort.vendor is Vendor.CPU:
        return own
    device = cohort.device_resource or labels.DEVICE_RESOURCES[cohort.vendor]
    return [{"key": device, "operator": "Exists", "effect": "NoSchedule"}, *own]


def _affinity(placement: Placement) -> Body:
    term: Body = {}
    if placement.required:
        term["matchExpressions"] = [
            {"key": key, "operator": "In", "values": list(values)} for key, values in placement.required
        ]
    if placement.excluded:
        term["matchFields"] = [
            {"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in placement.excluded
        ]
    return {"nodeSelectorTerms": [term]} if term else {}


def _volumes(run: RunRecord, spec: FdlRunSpec, *, bridged: bool = False) -> tuple[list[Body], list[Body]]:
    """Volumes of a member and where they are mounted."""
    secret: Body = {
        "secretName": names.secret(run.name),
        "defaultMode": 0o440,
        "items": [{"key": "token", "path": "token"}, {"key": "ca.crt", "path": "ca.crt"}],
    }
    table: list[tuple[str, str, bool, Body]] = [
        ("run", RUN_DIR, True, {"configMap": {"name": names.config_map(run.name)}}),
        ("secret", SECRET_DIR, True, {"secret": secret}),
        ("shm", "/dev/shm", False, {"emptyDir": {"medium": "Memory"}}),  # noqa: S108 - a path in the container
        ("tmp", "/tmp", False, {"emptyDir": {}}),  # noqa: S108 - a path in the container
    ]
    if spec.checkpoint is not None:
        table.append(("checkpoints", names.CHECKPOINT_DIR, False, _claim(spec.checkpoint.claim)))
    if spec.data.claim is not None:
        table.append(("data", spec.data.mount_path, True, _claim(spec.data.claim)))
    source = spec.trainer.source
    if source.config_map is not None:
        # optional: a missing ConfigMap is then reported by the agent as a missing script, not as a pod that hangs.
        script: Body = {"configMap": {"name": source.config_map.name, "optional": True}}
        table.append(("script", names.SCRIPT_DIR, True, script))
    elif source.volume is not None:
        table.append(("script", names.SCRIPT_DIR, True, _claim(source.volume.claim)))
    if bridged:
        table.append((network.VOLUME, names.NCCL_DIR, True, {"emptyDir": {}}))
    volumes: list[Body] = [{"name": name, **content} for name, _, _, content in table]
    mounts: list[Body] = [
        {"name": name, "mountPath": path, "readOnly": read_only} for name, path, read_only, _ in table
    ]
    return volumes, mounts


def _claim(name: str) -> Body:
    # readOnly only at the mount: a claim that is mounted twice in a pod must agree on it in the volume.
    return {"persistentVolumeClaim": {"claimName": name}}
