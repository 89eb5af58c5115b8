"""NCCL's environment: what must not be set, alone or together."""

import pytest

from fdl_api.nccl_env import matches, parse_conf, troubles
from fdl_api.report import Interface

ETH0 = Interface(name="eth0", addresses=("10.0.0.7",), up=True)
ETH1 = Interface(name="eth1", addresses=("fd00::7",), up=True)
IB0 = Interface(name="ib0", up=False)
THERE = (ETH0, ETH1, IB0)

TROUBLES: list[tuple[dict[str, str], list[str]]] = [
    ({}, []),
    ({"NCCL_DEBUG": "INFO", "NCCL_IB_HCA": "mlx5_0"}, []),
    ({"NCCL_IGNORE_NET_MISMATCH": "1"}, ["ignore-mismatch"]),
    ({"NCCL_IGNORE_NET_MISMATCH": "0"}, []),
    ({"NCCL_PROTO": "LL128"}, ["protocol"]),
    ({"NCCL_PROTO": "simple, ll128"}, ["protocol"]),
    ({"NCCL_PROTO": "^LL128"}, []),
    ({"NCCL_PROTO": "LL"}, []),
    ({"NCCL_NET": "IB", "NCCL_IB_DISABLE": "1"}, ["contradiction"]),
    ({"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}, []),
    ({"NCCL_ALGO": "NVLS", "NCCL_NVLS_ENABLE": "0"}, ["contradiction"]),
    ({"NCCL_ALGO": "^NVLS", "NCCL_NVLS_ENABLE": "0"}, []),
    ({"NCCL_P2P_DISABLE": "1"}, []),
    ({"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}, ["slow-path"]),
    ({"CUDA_VISIBLE_DEVICES": "1"}, ["visible-devices"]),
    ({"HIP_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "1"}, ["visible-devices"]),
    ({"CUDA_VISIBLE_DEVICES": ""}, []),
    ({"NCCL_SOCKET_IFNAME": "=eth0"}, []),
    ({"NCCL_SOCKET_IFNAME": "ib"}, ["wrong-interface"]),
    ({"NCCL_SOCKET_IFNAME": "=eth"}, ["wrong-interface"]),
    ({"NCCL_SOCKET_IFNAME": "^eth"}, ["wrong-interface"]),
    ({"NCCL_SOCKET_IFNAME": "^docker,lo"}, []),
    ({"NCCL_SOCKET_IFNAME": "=eth0", "NCCL_SOCKET_FAMILY": "AF_INET6"}, ["wrong-interface"]),
    ({"NCCL_SOCKET_IFNAME": "=eth1", "NCCL_SOCKET_FAMILY": "AF_INET6"}, []),
    ({"NCCL_SOCKET_FAMILY": "AF_INET6"}, []),
]


@pytest.mark.parametrize(("env", "found"), TROUBLES)
def test_what_is_wrong_in_an_environment(env: dict[str, str], found: list[str]) -> None:
    told = troubles(env, THERE)
    assert [trouble.reason for trouble in told] == found
    for trouble in told:
        assert trouble.message and set(trouble.variables) <= set(env)


def test_an_environment_without_a_machine_is_not_judged_by_interfaces() -> None:
    assert troubles({"NCCL_SOCKET_IFNAME": "ib"}) == ()


def test_the_interfaces_that_are_there_are_named() -> None:
    (trouble,) = troubles({"NCCL_SOCKET_IFNAME": "ib"}, THERE)
    assert "eth0 10.0.0.7" in trouble.message and "ib0" not in trouble.message


@pytest.mark.parametrize(
    ("selection", "name", "hit"),
    [
        ("eth", "eth0", True),
        ("eth", "xeth0", False),
        ("=eth0,eth1", "eth1", True),
        ("=eth0", "eth01", False),
        ("^=docker0", "docker0", False),
        ("^=docker0", "docker01", True),
        ("^docker", "eth0", True),
    ],
)
def test_selections_of_interfaces(selection: str, name: str, hit: bool) -> None:
    assert matches(selection, name) is hit


def test_the_configuration_file() -> None:
    text = "# all nodes\nNCCL_DEBUG=WARN\nNCCL_SOCKET_IFNAME==eth0 # ours\n\nnonsense\n=x\n"
    assert parse_conf(text) == {"NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "=eth0"}
