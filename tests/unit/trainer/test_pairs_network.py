"""Ways between ranks over real sockets: on loopback, and through namespaces whose router loses packets."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from fdl_api.wire import BrokenPair, Epoch, EpochCause, EpochMember, PairFault, Reach
from fdl_trainer.pairs import Pairs, exchange, proof
from tests.unit.trainer.namespaces import Namespace, Network, network

KEY = proof.key_of("token")
LIMIT = 30.0


def listening(uid: str, address: str = "127.0.0.1", key: bytes = KEY) -> Pairs:
    pairs = Pairs(uid, key, address)
    pairs.start()
    return pairs


def dial(target: str, reach: Reach | None, key: bytes = KEY) -> BrokenPair | None:
    assert reach is not None
    return asyncio.run(exchange.dial(key, target, reach))


def fault(target: str, reach: Reach | None, key: bytes = KEY) -> PairFault | None:
    broken = dial(target, reach, key)
    assert broken is None or broken.peer == target
    return broken.fault if broken is not None else None


@contextlib.contextmanager
def server(serve: Callable[[socket.socket], None]) -> Iterator[Reach]:
    """A program of somebody else's at a port; it serves one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            with contextlib.suppress(OSError), listener.accept()[0] as connection:
                connection.settimeout(LIMIT)
                serve(connection)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield Reach(address="127.0.0.1", port=listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(LIMIT)


def epoch(number: int, cause: EpochCause, *ranks: Pairs) -> Epoch:
    members = [
        EpochMember(uid=f"{name}/0", member=name, address="127.0.0.1", cohort="cpu", reach=each.reach)
        for name, each in zip("abc", ranks, strict=False)
    ]
    return Epoch(generation=1, epoch=number, previous=number - 1, members=members, cause=cause, planned=False)


def test_each_way_is_tested_once_and_again_after_a_group_that_failed() -> None:
    a, b = listening("a/0"), listening("b/0")
    start = epoch(1, EpochCause.START, a, b)
    report = a.test(start)
    assert report is not None and (report.epoch, report.broken, report.count) == (1, [], 0)
    assert a.test(epoch(2, EpochCause.JOIN, a, b)) is None, "the way is known"
    a.formed(False)
    assert a.test(epoch(3, EpochCause.DEATH, a, b)) is not None
    a.formed(True)
    assert a.test(epoch(4, EpochCause.DEATH, a, b)) is None


def test_a_broken_way_is_named_and_tested_with_the_next_epoch_again() -> None:
    a, b = listening("a/0"), listening("b/0")
    c = Pairs("c/0", KEY, "127.0.0.1")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else gets the port
        c.reach = Reach(address="127.0.0.1", port=held.getsockname()[1])
        report = a.test(epoch(1, EpochCause.START, a, b, c))
    assert report is not None and report.count == 1
    assert [(way.peer, way.fault) for way in report.broken] == [("c/0", PairFault.REFUSED)]
    c.start()
    again = a.test(epoch(2, EpochCause.JOIN, a, b, c))
    assert again is not None and again.broken == []


def test_many_ranks_may_dial_one_at_the_same_time() -> None:
    reach = listening("t/0").reach
    assert reach is not None

    async def all_at_once() -> list[BrokenPair | None]:
        return await asyncio.gather(*(exchange.dial(KEY, "t/0", reach) for _ in range(40)))

    assert asyncio.run(all_at_once()) == [None] * 40


def test_another_rank_of_the_run_or_one_of_another_run_is_not_the_one_that_is_meant() -> None:
    answering = listening("b/0")
    assert fault("b/0", answering.reach) is None
    assert fault("z/0", answering.reach) is PairFault.FOREIGN, "its address has another rank now"
    assert fault("b/0", answering.reach, proof.key_of("another run")) is PairFault.FOREIGN


def test_a_stranger_gets_nothing_back() -> None:
    answering = listening("b/0")
    assert answering.reach is not None
    with socket.create_connection((answering.reach.address, answering.reach.port), LIMIT) as stranger:
        stranger.sendall(bytes(proof.NONCE_BYTES + proof.PROOF_BYTES))
        received = bytearray()
        while piece := stranger.recv(4096):
            received += piece
    assert received.startswith(proof.MAGIC)
    assert received[proof.GREETING_BYTES :] == bytes(proof.PROOF_BYTES)


def test_a_program_that_is_not_fdl_is_told_from_one_that_says_nothing_and_one_that_hangs_up() -> None:
    with server(lambda line: line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as web:
        assert fault("b/0", web) is PairFault.FOREIGN
    with server(lambda line: line.close()) as shut:
        assert fault("b/0", shut) is PairFault.CLOSED
    with server(lambda line: [line.recv(1), None][1]) as mute:
        assert fault("b/0", mute) is PairFault.SILENT


def test_a_rank_without_the_address_goes_on_without_a_test() -> None:
    alone = listening("a/0", "192.0.2.1")
    assert alone.reach is None


# --- through a router -----------------------------------------------------------------------------------


@pytest.fixture
def net() -> Iterator[Network]:
    with network() as made:
        yield made


def faults(net: Network) -> tuple[PairFault | None, PairFault | None]:
    """What is wrong with the way from host 0 to host 1, and with the way back."""
    ranks = [host.call(lambda n=n: listening(f"{n}/0", net.address(n))) for n, host in enumerate(net.hosts)]  # type: ignore[misc]

    def way(source: Namespace, target: int) -> PairFault | None:
        return source.call(lambda: fault(f"{target}/0", ranks[target].reach))

    return way(net.hosts[0], 1), way(net.hosts[1], 0)


def test_a_way_through_a_router_works(net: Network) -> None:
    assert faults(net) == (None, None)


def test_a_firewall_on_one_end_breaks_one_direction(net: Network) -> None:
    net.hosts[1].sh("iptables -A INPUT -p tcp --syn -j DROP")
    assert faults(net) == (PairFault.TIMEOUT, None)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("icmp-admin-prohibited", PairFault.NO_ROUTE),
        ("icmp-net-unreachable", PairFault.NO_ROUTE),
        ("tcp-reset", PairFault.REFUSED),
    ],
)
def test_a_firewall_that_rejects_says_so(net: Network, answer: str, expected: PairFault) -> None:
    net.router.sh(f"iptables -A FORWARD -i to0 -p tcp --syn -j REJECT --reject-with {answer}")
    assert faults(net) == (expected, None)


def test_a_missing_route_is_told_at_once(net: Network) -> None:
    net.hosts[0].sh("ip route del default")
    there, back = faults(net)
    assert there is PairFault.NO_ROUTE
    assert back is PairFault.TIMEOUT, "the answers do not find back"


def test_an_mtu_that_nobody_tells_of_loses_large_packets_only(net: Network) -> None:
    """The router's link takes 1,300 bytes, the hosts believe in 1,500, and the router's word on it is lost."""
    net.router.sh("ip link set to1 mtu 1300", "iptables -A OUTPUT -p icmp -j DROP")
    assert faults(net) == (PairFault.LARGE_OUT, PairFault.LARGE_BACK), "both ends tell of the same direction"


def test_an_mtu_that_the_router_tells_of_is_no_fault(net: Network) -> None:
    net.router.sh("ip link set to1 mtu 1300", "ip link set to0 mtu 1300")
    net.hosts[1].sh("ip link set eth0 mtu 1300")
    assert faults(net) == (None, None)


def test_large_packets_that_are_lost_on_the_way_back_are_told_from_those_on_the_way_there(net: Network) -> None:
    net.router.sh("iptables -A FORWARD -i to1 -m length --length 1300:65535 -j DROP")
    assert faults(net) == (PairFault.LARGE_BACK, PairFault.LARGE_OUT)
