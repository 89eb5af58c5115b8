"""A whole run on two hosts whose router loses packets: the pair is named, and the run begins once it does not."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from fdl_api.run import JoinSpec
from fdl_api.runconfig import MemberEnv, RunConfig
from tests.unit.trainer.cluster import LoopbackRun
from tests.unit.trainer.namespaces import Network, network
from tools import loopback

BLOBS = Path(__file__).parent / "scripts" / "blobs.py"


class RoutedRun(LoopbackRun):
    """A run whose coordinator is on the router, where all hosts reach it."""

    def environment(self, **more: str) -> dict[str, str]:
        """See the base."""
        return {**super().environment(), "FDL_LISTEN": "0.0.0.0", **more}

    def start_on(self, net: Network, host: int) -> None:
        """Start a member on a host."""
        at = f"10.77.{host}.1:{self.config.coordinator_port}"
        more: dict[str, Any] = {MemberEnv.POD_IP: net.address(host), MemberEnv.COORDINATOR: at}
        net.hosts[host].call(lambda: self.start_member(host, **more))


def run_of_two(folder: Path, args: list[str]) -> RoutedRun:
    """A run that never starts with one member, however late the other one is."""
    join = JoinSpec(min_members=2, target_members=2, window_seconds=60, cap_seconds=300)
    return RoutedRun(folder, RunConfig.model_validate({**loopback.run_values(folder, BLOBS, 2, args), "join": join}))


def told(state: dict[str, Any]) -> str:
    return str(state.get("problem", ""))


def test_two_members_that_the_network_keeps_apart_are_named_and_train_once_it_does_not(tmp_path: Path) -> None:
    with network() as net:
        net.router.sh("iptables -A FORWARD -p tcp --syn -j DROP")
        net.router.call(lambda: apart_then_together(tmp_path, net))


def apart_then_together(folder: Path, net: Network) -> None:
    """In the router's thread."""
    with loopback.started(run_of_two(folder, [])) as run:
        for host in range(2):
            run.start_on(net, host)
        problem = told(run.wait_state("the pair is named", told, 150.0))
        assert "Rank 0 of digits-cpu-0-1 on node node-0 does not reach rank 0 of digits-cpu-1-1 on node" in problem
        assert "at 10.77.1.2 port " in problem and "the connection timed out (after 2 s), nor the other way." in problem
        assert "NetworkPolicy" in problem
        subprocess.run(["iptables", "-F", "FORWARD"], check=True)  # this thread is the router's
        state = run.wait_state("the run ends", lambda state: state["outcome"] in ("succeeded", "failed"), 120.0)
        assert state["outcome"] == "succeeded" and told(state) == "", (state, run.logs())


@pytest.mark.parametrize(("source", "target"), [(0, 1), (1, 0)])
def test_one_broken_direction_is_named_as_such_whether_the_backend_can_do_without_it_or_not(
    tmp_path: Path, source: int, target: int
) -> None:
    """Gloo connects one way only: of the two directions one is a note, and the other one a problem."""
    with network() as net:
        net.router.sh(f"iptables -A FORWARD -i to{source} -p tcp --syn -j DROP")
        words = net.router.call(lambda: words_of_a_run(tmp_path, net))
    ends = [f"ank 0 of digits-cpu-{host}-1 on node node-{host}" for host in (source, target)]
    assert f"{ends[0]} does not reach r{ends[1]} at {net.address(target)} port " in words
    assert "the connection timed out (after 2 s); the other way works." in words


def words_of_a_run(folder: Path, net: Network) -> str:
    """What a run of two members is told of its ways; in the router's thread."""
    with loopback.started(run_of_two(folder, ["--epochs", "40", "--work", "4"])) as run:
        for host in range(2):
            run.start_on(net, host)
        state = run.wait_state("the pair is named", lambda state: told(state) or state["notes"], 150.0)
        return " ".join([told(state), *state["notes"]])
