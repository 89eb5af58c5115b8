"""Every key of floDl's ``fdl.cluster.yml`` and of the ``fdl.yml`` below it, with what became of it.

The list is floDl's own schema up to 0.9, with the keys that earlier releases had in their place. A path names a key:
``[]`` stands for each item of a list, ``*`` for each name of a mapping whose names are the user's.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from fdl_api import legacy, not_yet

Kind = Literal[
    "text", "integer", "number", "flag", "texts", "integers", "numbers", "devices", "anchor", "progressive",
    "ssh", "env", "map", "maps", "any",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Key:
    """One key.

    Attributes:
        path: where it stands.
        kind: the type of its value in floDl.
        became: the field that takes its place; empty when there is none.
        instead: why there is none and what does its work here; empty for a key that was carried over.
        legacy: whether floDl itself has given it up.
    """

    path: str
    kind: Kind
    became: str = ""
    instead: str = ""
    legacy: bool = False


def _became(path: str, kind: Kind, became: str) -> Key:
    return Key(path, kind, became=became)


def _none(path: str, kind: Kind, instead: str) -> Key:
    return Key(path, kind, instead=instead)


def _old(path: str, kind: Kind, *, became: str = "", instead: str = "") -> Key:
    return Key(path, kind, became, instead, legacy=True)


def _interface() -> Key:
    """It is in the API; whether it is in this release is another question."""
    refused = next((row for row in not_yet.CLUSTER if row.field == "fabric"), None)
    if refused is None:
        return _became("nccl_socket_ifname", "text", "FdlCluster spec.fabric.groups[].socketInterface")
    return _none("nccl_socket_ifname", "text", f"spec.fabric is not available in this release; {refused.instead}")


def _below(prefix: str, keys: Iterable[Key]) -> tuple[Key, ...]:
    return tuple(Key(prefix + key.path, key.kind, key.became, key.instead, key.legacy) for key in keys)


_INSTEAD: Final = {key.key: key.instead for key in (*legacy.SPEC, *legacy.COHORT)}
"""What the API server says of a key that floDl itself has given up."""

_SERVICE: Final = _INSTEAD["master_addr"]
_NO_SSH: Final = _INSTEAD["ssh_target"]
_IN_THE_IMAGE: Final = (
    "code and libraries come in the trainer image, and the script by spec.trainer.source: nothing is checked out or "
    "built on a node"
)
_NO_WALK_IN: Final = (
    "members are pods that the operator starts on fitting nodes; a machine becomes one by joining the cluster"
)
_NO_DOOR: Final = "the operator makes keys and certificates for each run, in a Secret, and only its own pods know them"
_MEMORY: Final = "set spec.cohorts[].resources.limits.memory; what a batch needs is decided in the script"
_IN_THE_SCRIPT: Final = "it belongs into the script: it is ordinary PyTorch"
_SEEN: Final = "what is measured is in status.training and in the coordinator's metrics"

_SSH: Final = (
    _none("target", "text", _NO_SSH),
    _none("port", "integer", _NO_SSH),
    _none("user", "text", _NO_SSH),
    _none("identity_file", "text", _NO_SSH),
    _none("options", "texts", _NO_SSH),
)
_OLD_SSH: Final = (
    _old("ssh_target", "text", instead=_NO_SSH),
    _old("ssh_port", "integer", instead=_NO_SSH),
    _old("ssh_user", "text", instead=_NO_SSH),
    _old("ssh_identity_file", "text", instead=_NO_SSH),
    _old("ssh_options", "texts", instead=_NO_SSH),
)
_SOURCE: Final = (
    _none("from", "text", _IN_THE_IMAGE),
    _none("cwd", "text", _IN_THE_IMAGE),
    _none("build", "text", _IN_THE_IMAGE),
    _none("bin", "text", _IN_THE_IMAGE),
)

_JOIN_WINDOW: Final = (
    _became("min_rank_start", "integer", "spec.join.minMembers"),
    _became("join_timeout", "integer", "spec.join.windowSeconds"),
    _became("target_ranks", "integer", "spec.join.targetMembers"),
    _became("max_join_timeout", "integer", "spec.join.capSeconds"),
    _none("open_admission", "flag", _NO_DOOR),
    _none("discovery", "flag", _NO_WALK_IN),
    _none("token", "text", _NO_DOOR),
    _none("tunnel_only", "flag", "members reach each other over the pod network; a NetworkPolicy admits nobody else"),
    _became("start", "text", "spec.join.start (manual: spec.runPolicy.suspend)"),
)
_CONTROLLER: Final = (
    _none("host", "text", _SERVICE),
    _none("port", "integer", _SERVICE),
    _none("path", "text", _IN_THE_IMAGE),
    _none("docker", "text", _IN_THE_IMAGE),
    _none("arch", "text", "the coordinator computes nothing and needs no torch; members have a variant"),
    _became("data_path", "text", "spec.data.mountPath"),
    _none("join", "map", "its keys are told one by one"),
    *_below("join.", _JOIN_WINDOW),
)
_WORKER: Final = (
    _became("host", "text", "a member of spec.cohorts[]"),
    _became("local_devices", "devices", "spec.cohorts[].devicesPerReplica"),
    _interface(),
    _none("path", "text", _IN_THE_IMAGE),
    _none("ssh", "ssh", _NO_SSH),
    *_below("ssh.", _SSH),
    _became("tunnel", "flag", "spec.mode: a cpu mode, where the files name none"),
    _became("arch", "text", "FdlCluster spec.variants[], spec.cohorts[].variant"),
    _became("data_path", "text", "spec.data.mountPath"),
    _none("gpu_ram_share", "number", _MEMORY),
    _none("docker", "text", _IN_THE_IMAGE),
    _became("env", "env", "spec.trainer.env, or spec.cohorts[].podTemplate where hosts differ"),
    _old("name", "text", became="a member of spec.cohorts[] (floDl calls it host now)"),
    _old("ranks", "integers", instead=_INSTEAD["ranks"]),
    _old("libtorch_path", "text", instead=_INSTEAD["libtorch_path"]),
    *_OLD_SSH,
)
_CLUSTER: Final = (
    _none("controller", "map", "its keys are told one by one"),
    *_below("controller.", _CONTROLLER),
    _became("workers", "maps", "spec.cohorts: equal hosts are one cohort"),
    *_below("workers[].", _WORKER),
    _became("env", "env", "spec.trainer.env"),
    _none("gpu_ram_share", "number", _MEMORY),
    _old("master_addr", "text", instead=_SERVICE),
    _old("master_port", "integer", instead=_SERVICE),
    _old("hosts", "maps", became="spec.cohorts: equal hosts are one cohort (floDl calls them workers now)"),
    *_below("hosts[].", _WORKER),
    *_OLD_SSH,
)

_DDP: Final = (
    _became("mode", "text", "spec.mode"),
    _became("policy", "text", "spec.mode"),
    _became("backend", "text", "spec.mode"),
    _became("anchor", "anchor", "spec.elche.anchor"),
    _became("max_anchor", "integer", "spec.elche.maxAnchor"),
    _became("overhead_target", "number", "spec.elche.overheadTarget"),
    _became("divergence_threshold", "number", "spec.elche.divergenceThreshold"),
    _became("max_batch_diff", "integer", "spec.elche.maxBatchDiff"),
    _none("speed_hint", "map", "speeds are known after two windows; spec.elche.partitionRatios is a hint for these"),
    _none("speed_hint.slow_rank", "integer", "speeds are known after two windows"),
    _none("speed_hint.ratio", "number", "speeds are known after two windows"),
    _became("partition_ratios", "numbers", "spec.elche.partitionRatios"),
    _none("progressive", "progressive", "samples are always leased in parts, as fast as each rank takes them"),
    _none("max_grad_norm", "number", f"{_IN_THE_SCRIPT} (torch.nn.utils.clip_grad_norm_)"),
    _none("lr_scale_ratio", "number", _IN_THE_SCRIPT),
    _none("snapshot_timeout", "integer", "who is late is not dead; heartbeats say who is, within 2 s"),
    _none("checkpoint_every", "integer", "set spec.checkpoint.intervalSeconds: checkpoints go by time, not by epochs"),
    _none("timeline", "flag", _SEEN),
)
_TRAINING: Final = (
    _became("epochs", "integer", "spec.trainer.args"),
    _became("batch_size", "integer", "spec.trainer.args"),
    _became("batches_per_epoch", "integer", "spec.trainer.args"),
    _became("lr", "number", "spec.trainer.args"),
    _became("seed", "integer", "spec.trainer.args"),
)
_OUTPUT: Final = (
    _none("dir", "text", "checkpoints go to spec.checkpoint.claim; write what else the script makes to a volume"),
    _none("timeline", "flag", _SEEN),
    _none("monitor", "integer", "kubectl get fdr -w and fdl explain run show a run; no port is opened on a node"),
)
_SETTINGS: Final = (
    _none("ddp", "map", "its keys are told one by one"),
    *_below("ddp.", _DDP),
    _none("training", "map", "its keys are told one by one"),
    *_below("training.", _TRAINING),
    _none("output", "map", "its keys are told one by one"),
    *_below("output.", _OUTPUT),
)

_WALK_IN: Final = (
    _none("controller", "text", _NO_WALK_IN),
    _none("ssh", "ssh", _NO_WALK_IN),
    *_below("ssh.", _SSH),
    _none("token", "text", _NO_DOOR),
    _none("bin", "text", _IN_THE_IMAGE),
    _none("source", "map", _IN_THE_IMAGE),
    *_below("source.", _SOURCE),
    _none("libtorch", "text", "variants are images, listed in FdlCluster spec.variants; auto takes one that covers"),
    _none("host", "text", "a member is named by its run, cohort and seat"),
    _none("devices", "integers", "a node's device plugin hands out devices; set spec.cohorts[].devicesPerReplica"),
    _none("persist", "flag", "a member that ends is replaced by the operator, and a run is an object of its own"),
    _none("data_path", "text", "put the data on a claim and name it in spec.data.claim"),
    _none("data_source", "text", "put the data on a claim and name it in spec.data.claim"),
    _none("gpu_ram_share", "number", _MEMORY),
    _none("sig_probe", "flag", "the coordinator compares the signature of each member's model before it admits it"),
    _none("args", "texts", "arguments belong to the run: spec.trainer.args, the same for all members"),
)
_PUBLISH: Final = (
    _none("source", "text", _IN_THE_IMAGE),
    _none("bin", "text", _IN_THE_IMAGE),
    _none("cwd", "text", _IN_THE_IMAGE),
    _none("build", "text", _IN_THE_IMAGE),
    _none("to", "text", _IN_THE_IMAGE),
    _none("identity", "text", _IN_THE_IMAGE),
    _became("args", "texts", "spec.trainer.args"),
)
_COMMAND: Final = (
    _none("description", "text", "it is for people; a comment in the manifest does the same"),
    _none("run", "text", "port the program to a PyTorch script and name it in spec.trainer.source"),
    _none("append", "text", "arguments belong into spec.trainer.args"),
    _none("path", "text", "give fdl convert the fdl.yml of that folder, too, before this file"),
    _none("docker", "text", _IN_THE_IMAGE),
    _became("cluster", "flag", "an FdlRun"),
    _became("options", "any", "spec.trainer.args"),
    _none("commands", "any", "give the commands that train as FdlRuns; the rest are programs of yours"),
    *_SETTINGS,
)
_TOP: Final = (
    _none("cluster", "map", "its keys are told one by one"),
    *_below("cluster.", _CLUSTER),
    _none("commands", "map", "a command that fans out becomes an FdlRun; the rest are programs of yours"),
    *_below("commands.*.", _COMMAND),
    *_SETTINGS,
    _none("join", "map", "its keys are told one by one"),
    *_below("join.", _WALK_IN),
    _none("publish", "map", "its keys are told one by one"),
    *_below("publish.", _PUBLISH),
    _none("description", "text", "it is for people; a comment in the manifest does the same"),
    _none("docker", "text", _IN_THE_IMAGE),
    _none("entry", "text", "port the program to a PyTorch script and name it in spec.trainer.source"),
    _none("schema", "any", "the script reads its arguments itself (argparse)"),
    _none("arg-name", "text", "it is for floDl's help texts"),
    _none("inherit-from", "text", "give fdl convert that file, too, before this one"),
)

KEYS: Final = {key.path: key for key in _TOP}
"""All keys, by path."""

BLOCKS: Final = frozenset(path for path, key in KEYS.items() if key.kind in ("map", "ssh"))
"""Paths of keys that only hold other keys: the account names those."""
