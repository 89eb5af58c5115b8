"""Merging spec.cohorts[].podTemplate over the pod that fdl builds.

The rules are those of a strategic merge, as far as a pod needs them:

* objects are merged key by key; ``null`` removes a key;
* lists whose items have a natural key are merged by it: containers, volumes, env and ports by ``name``,
  volumeMounts by ``mountPath``, imagePullSecrets by ``name``, hostAliases by ``ip``;
* tolerations and topologySpreadConstraints are appended; every other list replaces ours;
* required node affinity is joined with fdl's own: each of the user's terms must hold together with it;
* libraries that the user preloads into the trainer come after fdl's own.

What fdl needs for itself cannot be overlaid: name, namespace, owner, labels below fdl.dev/, restartPolicy, and the
``FDL_`` variables of the container ``trainer``.
"""

import copy
from typing import Any, Final

from fdl_api.labels import DOMAIN
from fdl_api.names import TRAINER_CONTAINER
from fdl_operator.build.common import Body

_KEYS: Final = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "ports": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "hostAliases": "ip",
}
_APPENDED: Final = frozenset({"tolerations", "topologySpreadConstraints"})
PRELOAD: Final = "LD_PRELOAD"


def merge_pod(pod: Body, template: Body) -> Body:
    """A new pod: ``pod`` with ``template`` laid over it, minus what must stay as fdl builds it."""
    result: Body = _merge(
        pod, {key: template[key] for key in ("metadata", "spec") if isinstance(template.get(key), dict)}
    )
    own = pod["metadata"]
    for key in ("name", "namespace", "ownerReferences"):
        result["metadata"][key] = copy.deepcopy(own[key])
    for section in ("labels", "annotations"):
        kept = {
            key: text for key, text in (result["metadata"].get(section) or {}).items() if not key.startswith(DOMAIN)
        }
        ours = {key: text for key, text in own.get(section, {}).items() if key.startswith(DOMAIN)}
        result["metadata"][section] = kept | ours
    result["spec"]["restartPolicy"] = pod["spec"]["restartPolicy"]
    _restore_affinity(result["spec"], pod["spec"], template.get("spec") or {})
    _restore_env(result["spec"], pod["spec"])
    return result


def _merge(base: Any, overlay: Any, key: str = "") -> Any:
    if isinstance(base, dict) and isinstance(overlay, dict):
        merged = dict(base)
        for name, value in overlay.items():
            if value is None:
                merged.pop(name, None)
            else:
                merged[name] = _merge(base.get(name), value, name)
        return merged
    if isinstance(overlay, list) and isinstance(base, list):
        if key in _APPENDED:
            return copy.deepcopy(base) + copy.deepcopy(overlay)
        if key in _KEYS:
            return _merge_list(base, overlay, _KEYS[key])
    return copy.deepcopy(overlay)


def _merge_list(base: list[Any], overlay: list[Any], key: str) -> list[Any]:
    merged = list(base)
    places = {item.get(key): place for place, item in enumerate(base) if isinstance(item, dict)}
    for item in overlay:
        name = item.get(key) if isinstance(item, dict) else None
        if name is not None and name in places:
            merged[places[name]] = _merge(merged[places[name]], item)
        else:
            merged.append(copy.deepcopy(item))
    return merged


def _restore_affinity(spec: Body, ours: Body, template: Body) -> None:
    own = _required_terms(ours)
    if not own:
        return
    node = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    theirs = _required_terms(template) or [{}]
    node["requiredDuringSchedulingIgnoredDuringExecution"] = {
        "nodeSelectorTerms": [_joined(term, own[0]) for term in theirs]
    }


def _required_terms(spec: Body) -> list[Body]:
    node = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    return list(required.get("nodeSelectorTerms") or [])


def _joined(theirs: Body, ours: Body) -> Body:
    term: Body = {}
    for key in ("matchExpressions", "matchFields"):
        entries = [*(theirs.get(key) or []), *(ours.get(key) or [])]
        if entries:
            term[key] = entries
    return term


def _restore_env(spec: Body, ours: Body) -> None:
    own = {entry["name"]: entry for entry in ours["containers"][0]["env"] if entry["name"].startswith("FDL_")}
    for container in spec["containers"]:
        if container["name"] == TRAINER_CONTAINER:
            kept = [entry for entry in container.get("env", []) if entry.get("name") not in own]
            container["env"] = [*own.values(), *kept]
            _restore_preload(container, ours["containers"][0]["env"])


def _restore_preload(container: Body, ours: list[Body]) -> None:
    """A library that fdl preloads (a bridged NCCL) is still preloaded when the template names others."""
    own = next((entry for entry in ours if entry["name"] == PRELOAD), None)
    if own is None:
        return
    env = container["env"]
    place = next((place for place, entry in enumerate(env) if entry.get("name") == PRELOAD), None)
    if place is None:
        env.append(own)
    elif env[place] != own:
        env[place] = joined_preload(own, env[place])


def joined_preload(own: Body, theirs: Body) -> Body:
    """One variable that preloads fdl's library first; a value that comes from elsewhere cannot be joined, and goes."""
    more = "" if "valueFrom" in theirs else theirs.get("value")
    return {"name": PRELOAD, "value": f"{own['value']}:{more}"} if more else own
