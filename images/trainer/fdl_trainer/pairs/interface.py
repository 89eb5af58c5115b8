"""The address that a run's groups use on this machine, by the variables that its backends read."""

import ipaddress
import logging
from collections.abc import Mapping, Sequence

from fdl_api import nccl_env, wire
from fdl_api.run import Mode
from fdl_trainer.interfaces import ipv4_addresses

log = logging.getLogger(__name__)


def group_address(mode: Mode, own: str, environment: Mapping[str, str]) -> str:
    """IP address of the interface that the groups of a mode use; a member's own where none is named or it has none.

    Args:
        mode: of the run.
        own: address at which the member says that others reach it.
        environment: may name an interface (``GLOO_SOCKET_IFNAME``) or several (``NCCL_SOCKET_IFNAME``).
    """
    addresses = ipv4_addresses()
    variable = "NCCL_SOCKET_IFNAME" if mode.is_nccl else "GLOO_SOCKET_IFNAME"
    chosen = environment.get(variable, "")
    if mode.is_nccl:
        meant = [addresses[name] for name in nccl_interfaces(list(addresses), chosen)]
        found = own if own in meant or not meant else meant[0]
    else:
        found = addresses.get(chosen, own)
    if _is_loopback(found) and not _is_loopback(own):
        log.warning(
            "%s=%s leaves out the interface of %s, at which others reach this member, so that its groups would use "
            "the loopback, which no other machine reaches; name the interface that the members share, or leave the "
            "variable out",
            variable,
            chosen,
            own,
        )
    return found


def keeps_to_itself(rank: wire.EpochMember, own: str) -> str:
    """Why a rank cannot be reached whatever the network is like: it says that its groups use its loopback, and whoever
    dialled that would reach itself; empty for nothing.

    Args:
        rank: the other rank.
        own: address at which others reach this one: two on one machine share its loopback.
    """
    reach = rank.reach.address if rank.reach is not None else ""
    if rank.address == own or not _is_loopback(reach) or _is_loopback(rank.address):
        return ""
    return (
        f"{reach} is its own loopback: correct NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME, which leaves out its interface"
    )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def nccl_interfaces(names: Sequence[str], pattern: str) -> list[str]:
    """Interfaces that ``NCCL_SOCKET_IFNAME`` allows (:func:`fdl_api.nccl_env.matches`), in their order.

    None when it names none, not even one to leave out: then NCCL chooses by itself.
    """
    selection = pattern.strip()
    if not selection.strip("^=,"):
        return []
    return [name for name in names if nccl_env.matches(selection, name)]
