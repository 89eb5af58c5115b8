"""The check that members of a run make among each other before they form a group."""

from typing import Final

from fdl_api.checks.model import CheckInfo, Finding

_LARGE: Final = (
    "Give the interfaces of both nodes, and of the network between them, one MTU (ip link shows it, ping -M do -s 1472 "
    "tries it), or lower that of the pods' network below the smallest on the way."
)
PAIRS: Final = CheckInfo(
    "pairs",
    "fabric",
    "the way from each rank of a run to each other one, on the interface that its groups use: a connection, a proof of "
    "who answers, and 64 KiB there and back; at the start, for each joiner, and after a group that failed",
    (
        Finding(
            "timeout",
            "fail",
            "transient",
            "nothing comes back from the peer's port",
            "Let members reach each other on all ports in both directions: look for a NetworkPolicy, the nodes' "
            "firewalls or a security group between the two nodes, and for an interface that does not lead there.",
        ),
        Finding(
            "no-route",
            "fail",
            "transient",
            "the network says that there is no way to the peer, or forbids it",
            "Check the routes between the two nodes (the CNI plugin), and firewalls that reject: members must reach "
            "each other on all ports.",
        ),
        Finding(
            "refused",
            "fail",
            "transient",
            "the connection is refused",
            "See whether the member that is not reached still runs; if it does, a firewall between the two nodes "
            "rejects, or its address is another machine's.",
        ),
        Finding(
            "closed",
            "fail",
            "transient",
            "the connection ends in the middle of the test",
            "See whether the member that is not reached still runs, and what between the two nodes ends connections (a "
            "proxy, a service mesh): members of a run need none.",
        ),
        Finding(
            "silent",
            "fail",
            "transient",
            "the connection stands, and nobody answers on it",
            "See whether the member that is not reached is frozen or starved; a proxy or service mesh may also take "
            "the connection in its place.",
        ),
        Finding(
            "foreign",
            "fail",
            "permanent",
            "another program answers there",
            "Look for a proxy or service mesh between members, and for two nodes whose pods have the same addresses.",
        ),
        Finding("large-out", "fail", "permanent", "small packets arrive, and large ones to the peer do not", _LARGE),
        Finding("large-back", "fail", "permanent", "small packets arrive, and large ones from the peer do not", _LARGE),
    ),
    place="cluster",
    by="members",
)

CHECKS: Final = (PAIRS,)
