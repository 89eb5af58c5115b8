"""The address that a run's groups use on this machine, by the variables that its backends read."""

from collections.abc import Mapping, Sequence

from fdl_api import nccl_env
from fdl_api.run import Mode
from fdl_trainer.interfaces import ipv4_addresses


def group_address(mode: Mode, own: str, environment: Mapping[str, str]) -> str:
    """IP address of the interface that the groups of a mode use; a member's own where none is named or it has none.

    Args:
        mode: of the run.
        own: address at which the member says that others reach it.
        environment: may name an interface (``GLOO_SOCKET_IFNAME``) or several (``NCCL_SOCKET_IFNAME``).
    """
    addresses = ipv4_addresses()
    if not mode.is_nccl:
        return addresses.get(environment.get("GLOO_SOCKET_IFNAME", ""), own)
    names = nccl_interfaces(list(addresses), environment.get("NCCL_SOCKET_IFNAME", ""))
    meant = [addresses[name] for name in names]
    return own if own in meant or not meant else meant[0]


def nccl_interfaces(names: Sequence[str], pattern: str) -> list[str]:
    """Interfaces that ``NCCL_SOCKET_IFNAME`` allows (:func:`fdl_api.nccl_env.matches`), in their order.

    None when it names none, not even one to leave out: then NCCL chooses by itself.
    """
    selection = pattern.strip()
    if not selection.strip("^=,"):
        return []
    return [name for name in names if nccl_env.matches(selection, name)]
