"""The manifests: an FdlCluster and an FdlRun for each command that fans out. Pure and deterministic."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from fdl_api import not_yet
from fdl_api.cluster import FdlCluster
from fdl_api.model import first_problem
from fdl_api.names import TRAINER_CONTAINER
from fdl_api.run import FdlRun
from fdl_api.spec_workload import MAX_COHORTS
from fdl_cli.convert.arguments import arguments
from fdl_cli.convert.elche import elche
from fdl_cli.convert.hosts import Group, Host, groups, hosts, overlay
from fdl_cli.convert.modes import mode
from fdl_cli.convert.window import window

API: Final = "fdl.dev/v1alpha1"
MAX_GROUP_NAME: Final = 253
MAX_RUN_NAME: Final = 30
"""Short enough for the longest name that is made from a run's and a cohort's."""
SCRIPT: Final = "train.py"


class ConvertError(Exception):
    """No manifests can be made; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a person says on the command line.

    Attributes:
        name: name of the run; taken from the command when empty.
        command: the command to convert; all that fan out when empty.
        registry: where trainer images come from.
        tag: their tag.
    """

    name: str = ""
    command: str = ""
    registry: str = "fdl.local"
    tag: str = "dev"


@dataclass(slots=True)
class Manifests:
    """What was made.

    Attributes:
        objects: FdlCluster and FdlRuns as they are written.
        notes: what is not quite as it was, as sentences.
        todo: what a person must do before the run can start.
    """

    objects: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    todo: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Setup:
    """A set-up of floDl's: its files, and what they say about hosts."""

    tree: Mapping[str, Any]
    machines: list[Host]
    parts: list[Group]

    @property
    def cluster(self) -> Mapping[str, Any]:
        """floDl's block of that name."""
        found: Mapping[str, Any] = self.tree["cluster"]
        return found


def build(tree: Mapping[str, Any], wishes: Wishes) -> Manifests:
    """Manifests for the usable part of floDl's files (:class:`fdl_cli.convert.audit.Account`).

    Raises:
        ConvertError: there is no cluster in it, or it cannot be one of ours.
    """
    if "cluster" not in tree:
        raise ConvertError(
            "there is no block 'cluster' with floDl's hosts in it; give the file that has it, usually fdl.cluster.yml"
        )
    made = Manifests()
    note = made.notes.append
    machines = hosts(tree["cluster"], note)
    parts = groups(machines)
    if len(parts) > MAX_COHORTS:
        raise ConvertError(
            f"the hosts are of {len(parts)} kinds (devices, arch, env), but a run has at most {MAX_COHORTS} cohorts; "
            "make hosts alike, or convert them in parts"
        )
    if not parts:
        parts = [Group(name="nvidia", vendor="nvidia", torch=None, devices=1, members=1, env=())]
        note("no host is listed, so one cohort of vendor nvidia with one member stands for all")
    setup = Setup(tree, machines, parts)
    made.objects.append(_checked(FdlCluster, _cluster(setup, wishes, made)))
    for name, command in _commands(tree, wishes, made):
        made.objects.append(_checked(FdlRun, _run(name, command, setup, made)))
    made.notes = list(dict.fromkeys(made.notes))
    made.todo = list(dict.fromkeys(made.todo))
    return made


def _checked(model: type[BaseModel], manifest: dict[str, Any]) -> dict[str, Any]:
    try:
        model.model_validate(manifest)
    except ValidationError as error:
        raise ConvertError(
            f"what the files say cannot be {model.__name__} {manifest['metadata']['name']}: {first_problem(error)}; "
            "correct the files, or write the manifest by hand"
        ) from error
    return manifest


def _commands(tree: Mapping[str, Any], wishes: Wishes, made: Manifests) -> list[tuple[str, Mapping[str, Any]]]:
    """Name and settings of each run to make."""
    all_of_them: Mapping[str, Any] = tree.get("commands") or {}
    if wishes.command:
        if wishes.command not in all_of_them:
            have = ", ".join(all_of_them) or "none"
            raise ConvertError(f"there is no command {wishes.command!r} in the files (they have: {have})")
        return [(run_name(wishes.name or wishes.command), all_of_them[wishes.command])]
    wide = [(name, command) for name, command in all_of_them.items() if command.get("cluster")]
    if len(wide) > 1 and wishes.name:
        raise ConvertError(
            f"{len(wide)} commands fan out ({', '.join(name for name, _ in wide)}), so one name does not do; choose "
            "one with --command"
        )
    if not wide:
        made.notes.append("no command says 'cluster: true', so one run was made of what holds for all commands")
        return [(run_name(wishes.name or "train"), {})]
    names = [run_name(wishes.name or name) for name, _ in wide]
    runs = distinct(names, MAX_RUN_NAME)
    if runs != names:
        made.notes.append(f"commands have names that are alike, so their runs are numbered: {', '.join(runs)}")
    return [(run, command) for run, (_, command) in zip(runs, wide, strict=True)]


def distinct(names: Iterable[str], limit: int) -> list[str]:
    """The names, those that came before with a number behind: a later object of one name would replace the earlier.

    Args:
        names: names, in order.
        limit: characters of the longest that may be made.
    """
    made: list[str] = []
    for name in names:
        number, own = 1, name
        while own in made:
            number += 1
            own = f"{name[: limit - len(str(number)) - 1].rstrip('-.')}-{number}"
        made.append(own)
    return made


def run_name(text: str) -> str:
    """A text as the name of a run: lower-case letters, digits and dashes, a letter first."""
    name = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in text.lower())
    return name.lstrip("-0123456789")[:MAX_RUN_NAME].rstrip("-") or "train"


def _cluster(setup: Setup, wishes: Wishes, made: Manifests) -> dict[str, Any]:
    variants: list[dict[str, Any]] = []
    for torch in dict.fromkeys(part.torch for part in setup.parts if part.torch is not None and part.torch.known):
        image = f"{wishes.registry}/trainer-{torch.name}:{wishes.tag}"
        variant: dict[str, Any] = {"name": torch.name, "vendor": torch.vendor, "image": image}
        if torch.archs:
            variant["archs"] = list(torch.archs)
            made.todo.append(f"image {image}: build it with a torch that has kernels for {', '.join(torch.archs)}")
        else:
            made.todo.append(f"image {image}: build it ('fdl images build --variant cpu')")
        variants.append(variant)
    for part in setup.parts:
        if part.torch is None or not part.torch.known:
            told = f"arch {part.torch.name!r} does not say it" if part.torch else "the files do not say it"
            made.todo.append(
                f"variant for vendor {part.vendor}: add one to FdlCluster spec.variants, since {told} which "
                "architectures its torch has kernels for"
            )
    spec: dict[str, Any] = {"variants": variants} if variants else {}
    if fabric := _fabric(setup.machines, made.notes.append):
        spec["fabric"] = fabric
        if bare := [machine.name for machine in setup.machines if not machine.interface]:
            made.todo.append(
                f"interface of {', '.join(bare)}: name it in FdlCluster spec.fabric, since their entries have no "
                "nccl_socket_ifname and an NCCL mode over several nodes needs one on each (FabricUnknown)"
            )
    return {"apiVersion": API, "kind": "FdlCluster", "metadata": {"name": "default"}, "spec": spec}


def _fabric(machines: list[Host], note: Callable[[str], None]) -> dict[str, Any]:
    named = [machine for machine in machines if machine.interface]
    if not named or any(row.field == "fabric" for row in not_yet.CLUSTER):
        return {}
    if len({machine.interface for machine in machines}) == 1:
        return {"groups": [{"name": "all", "socketInterface": named[0].interface}]}
    note("interfaces differ, so each host has a group in spec.fabric by its name; put a label of yours there instead")
    names = [
        re.sub(r"[^a-z0-9.]+", "-", machine.name.lower()).strip("-.") or f"host-{at}"
        for at, machine in enumerate(named)
    ]
    return {
        "groups": [
            {
                "name": name,
                "nodeSelector": {"kubernetes.io/hostname": machine.name},
                "socketInterface": machine.interface,
            }
            for name, machine in zip(distinct(names, MAX_GROUP_NAME), named, strict=True)
        ]
    }


def _run(name: str, command: Mapping[str, Any], setup: Setup, made: Manifests) -> dict[str, Any]:
    note = made.notes.append
    ddp = {**(setup.tree.get("ddp") or {}), **(command.get("ddp") or {})}
    chosen = mode(ddp, {part.vendor for part in setup.parts}, any(each.tunnel for each in setup.machines), note)
    script = f"{name}-script"
    made.todo.append(
        f"ConfigMap {script}: port the program to PyTorch, then 'kubectl create configmap {script} "
        f"--from-file={SCRIPT}'"
    )
    trainer: dict[str, Any] = {"source": {"configMap": {"name": script, "key": SCRIPT}}}
    if args := arguments(setup.tree, command, note):
        trainer["args"] = args
    shared, own = overlay(setup.cluster.get("env") or {}, setup.parts, note)
    if shared:
        trainer["env"] = shared
    spec: dict[str, Any] = {"mode": chosen, "trainer": trainer}
    spec["cohorts"] = [_cohort(part, own.get(part.name)) for part in setup.parts]
    spec |= window(setup.cluster, setup.parts, note)
    if knobs := elche(ddp, sum(part.devices * part.members for part in setup.parts), note):
        spec["elche"] = knobs
    if path := _data_path(setup, note):
        spec["data"] = {"claim": f"{name}-data", "mountPath": path}
        made.todo.append(f"PersistentVolumeClaim {name}-data: make it, with what lies in {path}")
    spec["checkpoint"] = {"claim": f"{name}-checkpoints"}
    made.todo.append(f"PersistentVolumeClaim {name}-checkpoints: make it; best one that all nodes can mount")
    return {"apiVersion": API, "kind": "FdlRun", "metadata": {"name": name}, "spec": spec}


def _cohort(part: Group, env: list[dict[str, str]] | None) -> dict[str, Any]:
    cohort: dict[str, Any] = {"name": part.name, "vendor": part.vendor, "replicas": part.members}
    cohort["devicesPerReplica"] = part.devices
    if part.torch is not None and part.torch.known:
        cohort["variant"] = part.torch.name
    if env:
        cohort["podTemplate"] = {"spec": {"containers": [{"name": TRAINER_CONTAINER, "env": env}]}}
    return cohort


def _data_path(setup: Setup, note: Callable[[str], None]) -> str:
    paths = list(dict.fromkeys(machine.data_path for machine in setup.machines if machine.data_path))
    paths = paths or [path for path in [(setup.cluster.get("controller") or {}).get("data_path", "")] if path]
    if not paths:
        return ""
    if len(paths) > 1:
        note(f"data_path differs between hosts ({', '.join(paths)}); members all see the data at {paths[0]}")
    path = paths[0].rstrip("/")
    if not path.startswith("/"):
        note(f"data_path {paths[0]!r} is not absolute, so the data is mounted at /fdl/data")
        return "/fdl/data"
    return path or "/fdl/data"
