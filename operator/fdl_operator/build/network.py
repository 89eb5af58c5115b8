"""What a placement adds to a member's pod: the network interface, and a library that is preloaded (a bridged NCCL)."""

from typing import Final

from fdl_api import names
from fdl_api.cluster import NcclBridge
from fdl_api.placement import Placement
from fdl_operator.build.common import CONTAINER_SECURITY, Body
from fdl_operator.build.overlay import PRELOAD, joined_preload
from fdl_operator.model import NCCL_INIT
from fdl_operator.settings import Settings

VOLUME: Final = "fdl-nccl"


def variables(placement: Placement, user: list[Body]) -> list[Body]:
    """The user's variables, and what the placement adds: the network interface, and the library to preload.

    What the user names stays. Libraries that the user preloads come after ours.
    """
    own: dict[str, str] = {}
    if placement.interface:
        own |= {"NCCL_SOCKET_IFNAME": f"={placement.interface}", "GLOO_SOCKET_IFNAME": placement.interface}
    named = {entry["name"] for entry in user}
    entries = [{"name": name, "value": value} for name, value in own.items() if name not in named]
    if placement.bridge is None:
        return entries + user
    preload: Body = {"name": PRELOAD, "value": f"{names.NCCL_DIR}/{placement.bridge.path.rpartition('/')[2]}"}
    theirs = [entry for entry in user if entry["name"] == PRELOAD]
    kept = [entry for entry in user if entry["name"] != PRELOAD]
    return [*entries, *kept, joined_preload(preload, theirs[0]) if theirs else preload]


def bridge(source: NcclBridge, settings: Settings) -> Body:
    """Copies the library out of its image: the trainer's image has another one."""
    return {
        "name": NCCL_INIT,
        "image": source.image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["cp", "-L", source.path, f"{names.NCCL_DIR}/"],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
        "volumeMounts": [{"name": VOLUME, "mountPath": names.NCCL_DIR}],
        "securityContext": CONTAINER_SECURITY,
    }
