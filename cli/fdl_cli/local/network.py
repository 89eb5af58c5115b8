"""Links and routes of a cluster.

The bridge, the nodes' links and the routes lie in the control plane's network namespace; the machine itself
has a single link and a single route, so that nothing of it is changed and its firewall stays out of the way.
"""

import hashlib
import json
import subprocess
from pathlib import Path

from fdl_cli.local.errors import LocalError
from fdl_cli.local.subnets import Subnets

BRIDGE = "nodes0"
_LIMIT_S = 20.0


def host_link(cluster: str) -> str:
    """Name of the machine's link to a cluster; at most 15 characters, which is the kernel's limit."""
    name = f"fdl.{cluster}"
    if len(name) <= 15:
        return name
    return f"fdl.{hashlib.sha256(cluster.encode()).hexdigest()[:11]}"


def node_link(index: int) -> str:
    """Name of a node's link as the bridge sees it."""
    return f"node{index}"


def _ip(arguments: list[str], pid: int | None = None, check: bool = True, batch: str | None = None) -> str:
    enter = ["nsenter", f"--net=/proc/{pid}/ns/net"] if pid is not None else []
    command = [*enter, "ip", *arguments]
    done = subprocess.run(command, input=batch, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    if check and done.returncode:
        raise LocalError(
            f"`{' '.join(command)}` failed: {done.stderr.strip()}{f' in:{chr(10)}{batch}' if batch else ''}"
        )
    return done.stdout


def control_batch(plan: Subnets) -> str:
    """``ip -batch`` lines that lay the control plane's side."""
    return (
        "link set lo up\n"
        f"link add {BRIDGE} type bridge\n"
        f"addr add {plan.control}/24 dev {BRIDGE}\n"
        f"link set {BRIDGE} up\n"
        f"addr add {plan.api}/30 dev host0\n"
        "link set host0 up\n"
    )


def lay_control(cluster: str, plan: Subnets, pid: int) -> None:
    """Makes the machine's link into the namespace of process ``pid``, the bridge there, and the machine's route."""
    link = host_link(cluster)
    _ip(["link", "add", link, "type", "veth", "peer", "name", "host0", "netns", str(pid)])
    _ip(["-batch", "-"], pid, batch=control_batch(plan))
    machine = (
        f"addr add {plan.host}/30 dev {link}\nlink set {link} up\nroute add {plan.whole} via {plan.api} dev {link}\n"
    )
    _ip(["-batch", "-"], batch=machine)


def node_batch(plan: Subnets, index: int) -> str:
    """``ip -batch`` lines inside a node."""
    return (
        "link set lo up\n"
        f"addr add {plan.node(index)}/24 dev eth0\n"
        "link set eth0 up\n"
        f"route add default via {plan.control}\n"
    )


def lay_node(plan: Subnets, index: int, control_pid: int, node_pid: int) -> None:
    """Links the namespace of ``node_pid`` to the bridge and routes the node's pods to it."""
    link = node_link(index)
    # The remains of an earlier start: a link lives on for a moment after its node was killed.
    _ip(["link", "del", link], control_pid, check=False)
    _ip(["link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(node_pid)], control_pid)
    control = (
        f"link set {link} master {BRIDGE} up\n"
        f"route replace {plan.node_pods(index)} via {plan.node(index)} dev {BRIDGE}\n"
    )
    _ip(["-batch", "-"], control_pid, batch=control)
    _ip(["-batch", "-"], node_pid, batch=node_batch(plan, index))


def set_link(index: int, control_pid: int, up: bool) -> None:
    """Cuts a node off (both ways, API server included) or heals it."""
    _ip(["link", "set", node_link(index), "up" if up else "down"], control_pid)


def link_is_up(index: int, control_pid: int) -> bool:
    """Whether a node is not cut off."""
    text = _ip(["-json", "link", "show", node_link(index)], control_pid, check=False)
    flags: list[str] = json.loads(text)[0]["flags"] if text.strip() else []
    return "UP" in flags


def remove_host_link(cluster: str) -> None:
    """Removes the machine's link, and with it the route; nothing happens if it is gone."""
    link = host_link(cluster)
    if Path(f"/sys/class/net/{link}").exists():
        _ip(["link", "del", link], check=False)


def taken_networks() -> list[str]:
    """Networks that this machine has addresses in or routes to."""
    found: list[str] = []
    for route in json.loads(_ip(["-json", "-4", "route", "show", "table", "all"]) or "[]"):
        if route.get("dst", "default") != "default":
            found.append(route["dst"])
    for link in json.loads(_ip(["-json", "-4", "addr"]) or "[]"):
        found += [f"{a['local']}/{a['prefixlen']}" for a in link.get("addr_info", []) if "local" in a]
    return found
