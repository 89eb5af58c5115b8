"""``fdl local status``."""

import click
from rich.console import Console
from rich.table import Table

from fdl_cli.local import state
from fdl_cli.local.cluster import NodeStatus
from fdl_cli.local.commands.common import cluster, name_option, sentences


def memory_text(quantity: str) -> str:
    """A kubelet's ``Ki`` quantity, or plain bytes, in Gi; anything else as it is."""
    digits = quantity.removesuffix("Ki")
    if not digits.isdecimal():
        return quantity
    size = int(digits) * (1024 if quantity.endswith("Ki") else 1)
    return f"{size / 2**30:.1f}Gi"


def state_text(node: NodeStatus) -> str:
    """What a person wants to know first: a fault that was asked for, else the cluster's view."""
    if node.condition != "running":
        return node.condition
    return "Ready" if node.ready else "NotReady"


@click.command()
@name_option
@sentences
def status(name: str) -> None:
    """Show the nodes of a cluster."""
    local = cluster(name)
    record = state.require(local.paths)
    table = Table(title=f"{name} ({record.provider})", title_justify="left")
    for column in ("node", "state", "cpu", "memory", "simulated accelerators"):
        table.add_column(column)
    for node in local.status():
        devices = ", ".join(f"{a.vendor} {a.count} x {a.arch}" for a in node.spec.accelerators if a.count) or "-"
        table.add_row(node.spec.name, state_text(node), node.cpu, memory_text(node.memory), devices)
    console = Console()
    console.print(table)
    console.print(f"kubeconfig: {local.kubeconfig}", soft_wrap=True, highlight=False)
