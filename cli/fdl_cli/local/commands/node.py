"""``fdl local node``: faults of nodes, by name."""

from collections.abc import Callable

import click

from fdl_cli.local.cluster import Cluster
from fdl_cli.local.commands.common import cluster, name_option, say, sentences
from fdl_cli.local.errors import LocalError
from fdl_cli.local.nodespec import NodeSpec, parse_node


@click.group()
def node() -> None:
    """Stop, freeze, cut off and bring back nodes; change their simulated hardware."""


def _add(name: str, text: str, done: str, act: Callable[[Cluster, str], None]) -> None:
    @node.command(name=name, help=text)
    @name_option
    @click.argument("target", metavar="NODE")
    @sentences
    def command(name: str, target: str) -> None:
        act(cluster(name), target)
        say(f"{target} {done}")


_add("stop", "Cut a node's power: everything on it dies at once.", "is stopped", Cluster.node_stop)
_add("start", "Bring a stopped node back.", "is Ready", Cluster.node_start)
_add("freeze", "Stop every process of a node where it stands.", "is frozen", Cluster.node_freeze)
_add("thaw", "Let a frozen node go on.", "goes on", Cluster.node_thaw)
_add("cut", "Drop all traffic of a node while its pods run on.", "is cut off", Cluster.node_cut)
_add("heal", "Restore a cut node's traffic.", "is connected", Cluster.node_heal)


@node.command(name="set")
@name_option
@click.argument("target", metavar="NODE")
@click.argument("devices", nargs=-1, required=True, metavar="nvidia=COUNT:sm_NN|amd=COUNT:gfxNNN ...")
@sentences
def set_devices(name: str, target: str, devices: tuple[str, ...]) -> None:
    """Change the simulated accelerators of a running node; nvidia=0 takes them away."""
    parsed = parse_node(",".join(devices))
    if parsed.name or parsed.cpu is not None or parsed.memory is not None:
        raise LocalError("node set changes accelerators only: give nvidia=COUNT:sm_NN or amd=COUNT:gfxNNN.")
    cluster(name).node_set(NodeSpec(target, None, None, parsed.accelerators))
    say(f"{target} has new simulated hardware")
