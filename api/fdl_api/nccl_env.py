"""NCCL's environment: which variables, alone or together, make a run hang, fail or crawl. Pure rules.

Sources: NCCL's user guide, "Environment Variables" (interfaces; the debugging variables that it says not to keep in
production; that LL128 where NCCL does not choose it may corrupt data); NVIDIA/nccl#2428 (NCCL_IGNORE_NET_MISMATCH with
unequal RDMA devices hangs without an error); ROCm's "GPU isolation techniques" (the variables that hide devices, and
that HIP counts from what ROCR leaves).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from fdl_api.report import Interface

Reason = Literal["ignore-mismatch", "protocol", "contradiction", "wrong-interface", "slow-path", "visible-devices"]
VISIBLE: Final = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
)
"""Variables that hide devices or number them anew."""

CONF_FILES: Final = ("/etc/nccl.conf", "~/.nccl.conf")
"""Where NCCL looks for variables that the environment does not have; NCCL_CONF_FILE replaces the second."""

OWN: Final = {"NCCL_NVLS_ENABLE": "0"}
"""What members set where the run says nothing else (docs/concepts/groups.md), and which can be in the way as well."""

_FAMILIES: Final = {"AF_INET": ".", "AF_INET6": ":"}
"""Address families of NCCL_SOCKET_FAMILY, with the separator of their addresses."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A combination that must not be.

    Attributes:
        reason: finding of the check ``nccl-environment``.
        variables: names of the variables to look at.
        message: what they do, as a sentence without its end.
    """

    reason: Reason
    variables: tuple[str, ...]
    message: str


def parse_conf(text: str) -> dict[str, str]:
    """Variables in a ``nccl.conf``: one ``NAME=value`` a line, ``#`` begins a comment."""
    pairs = (line.split("#", 1)[0].strip().partition("=") for line in text.splitlines())
    return {name.strip(): value.strip() for name, sign, value in pairs if sign and name.strip()}


def matches(selection: str, name: str) -> bool:
    """Whether ``NCCL_SOCKET_IFNAME`` selects an interface.

    A list of prefixes divided by commas; ``=`` before it means whole names, ``^`` before both that they are left out.
    """
    excluded = selection.startswith("^")
    rest = selection.removeprefix("^")
    whole = rest.startswith("=")
    words = [word for word in rest.removeprefix("=").split(",") if word]
    hit = any(name == word if whole else name.startswith(word) for word in words)
    return hit is not excluded


def _interface(env: Mapping[str, str], interfaces: Iterable[Interface]) -> Trouble | None:
    selection, family = env.get("NCCL_SOCKET_IFNAME", ""), env.get("NCCL_SOCKET_FAMILY", "")
    if not selection and family not in _FAMILIES:
        return None
    usable = [item for item in interfaces if item.up and item.addresses]
    chosen = [item for item in usable if not selection or matches(selection, item.name)]
    separator = _FAMILIES.get(family, "")
    if any(separator in address for item in chosen for address in item.addresses):
        return None
    asked = f"NCCL_SOCKET_IFNAME={selection}" if selection else ""
    asked += f"{' with ' if asked and family else ''}{f'NCCL_SOCKET_FAMILY={family}' if family else ''}"
    have = ", ".join(f"{item.name} {' '.join(item.addresses)}" for item in usable) or "none"
    names = tuple(name for name in ("NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY") if env.get(name))
    return Trouble("wrong-interface", names, f"{asked} matches no interface that is up; there are: {have}")


def _forces(value: str, word: str) -> bool:
    """Whether a list such as NCCL_PROTO's asks for a word: it is in the list, and the list is not one of exclusions."""
    return not value.startswith("^") and word in (item.strip().upper() for item in value.split(","))


def _contradictions(env: Mapping[str, str]) -> list[Trouble]:
    found = []
    if env.get("NCCL_NET", "").upper() == "IB" and env.get("NCCL_IB_DISABLE") == "1":
        found.append(Trouble("contradiction", ("NCCL_NET", "NCCL_IB_DISABLE"), "NCCL_NET asks for what is disabled"))
    if _forces(env.get("NCCL_ALGO", ""), "NVLS") and env.get("NCCL_NVLS_ENABLE") == "0":
        found.append(Trouble("contradiction", ("NCCL_ALGO", "NCCL_NVLS_ENABLE"), "NCCL_ALGO asks for what is disabled"))
    return found


def troubles(env: Mapping[str, str], interfaces: Iterable[Interface] | None = None) -> tuple[Trouble, ...]:
    """What is wrong in an environment.

    Args:
        env: variables and their values.
        interfaces: of the machine; without them, NCCL_SOCKET_IFNAME is not judged.
    """
    found: list[Trouble | None] = []
    if env.get("NCCL_IGNORE_NET_MISMATCH", "0") not in ("", "0"):
        found.append(
            Trouble("ignore-mismatch", ("NCCL_IGNORE_NET_MISMATCH",), "unequal RDMA devices then hang without an error")
        )
    if _forces(env.get("NCCL_PROTO", ""), "LL128"):
        found.append(Trouble("protocol", ("NCCL_PROTO",), "LL128 is forced also where it corrupts data"))
    found += _contradictions(env)
    if interfaces is not None:
        found.append(_interface(env, interfaces))
    if env.get("NCCL_P2P_DISABLE") == "1" and env.get("NCCL_SHM_DISABLE") == "1":
        message = "devices of one machine talk by sockets"
        found.append(Trouble("slow-path", ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"), message))
    hidden = tuple(name for name in VISIBLE if env.get(name))
    if hidden:
        found.append(Trouble("visible-devices", hidden, "devices are hidden or numbered anew"))
    return tuple(trouble for trouble in found if trouble is not None)
