"""What people see."""

import io
import json
from typing import Any, Literal

import pytest
from rich.console import Console

from fdl_api.report import Check
from fdl_cli.fdlcluster import read
from fdl_cli.probe import text
from fdl_cli.probe.command import page
from fdl_cli.probe.rows import Problem, Survey, records, survey

from ..nodes import CONTROL_PLANE, NOW, cluster, cpu, gpu, node

GAP = Check(name="kernel-coverage", severity="fail", subject="nvidia 0", message="no kernels", remedy="Add an image.")
SIM = {"simulated": "true", "variant__cuda": "simulated", "variant__cuda12": "simulated"}


def seen(survey_: Survey, width: int = 100, node_: str = "", *, terminal: bool = False) -> str:
    colours: Literal["standard", "auto"] = "standard" if terminal else "auto"
    console = Console(
        file=io.StringIO(), width=width, force_terminal=terminal or None, color_system=colours, highlight=False
    )
    with console.capture() as capture:
        console.print(page(survey_, width, node_))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def look(*nodes: dict[str, Any], only: str = "") -> Survey:
    return survey(records(nodes), read(cluster()), None, NOW.timestamp(), only)


def test_the_table_at_80_columns() -> None:
    found = look(
        node("control-0", taints=CONTROL_PLANE),
        gpu("gpu-2", 12, GAP, variant__cuda="gap"),
        gpu("gpu-10", 45),
        cpu("cpu-1", 5000),
        cpu("cpu-2", gpu_vendor="amd"),
        gpu("sim-1", count=4, **SIM),
    )
    assert seen(found, 80) == (
        "NODE             STATE      DEVICES      ARCH  NCCL VARIANTS              REPORT\n"
        "control-0        not probed -            -     -    -                      never\n"
        "cpu-1            stale      -            -     -    cpu covers            83 min\n"
        "cpu-2            ready      0 amd        -     -    cpu covers              30 s\n"
        "gpu-2            ready      2 nvidia     sm_90 2.28 cuda gap                12 s\n"
        "gpu-10           ready      2 nvidia     sm_90 2.28 cuda verified           45 s\n"
        "sim-1            ready      4 nvidia sim sm_90 2.28 cuda simulated,         30 s\n"
        "                                                    cuda12 simulated\n"
        "\n"
        "4 of 5 nodes ready; 8 nvidia devices; 2 problems\n"
        "\n"
        "FAIL    report-age/old  cpu-1\n"
        "        the newest report is older than 900 s\n"
        "        -> It is 83 min old; see its prober pod: kubectl get pods -A -l\n"
        "        fdl.dev/role=prober -o wide\n"
        "FAIL    kernel-coverage  gpu-2  (nvidia 0)\n"
        "        no kernels\n"
        "        -> Add an image."
    )


def test_a_good_cluster_is_short() -> None:
    assert seen(look(gpu("a"))).splitlines()[-1] == "1 of 1 nodes ready; 2 nvidia devices; no problems"
    assert "no devices" in seen(look(cpu("a")))


LONG = "ip-10-0-12-34.eu-west-1.compute.internal-" + "x" * 80


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_no_line_is_wider_than_the_screen_and_no_name_is_cut(width: int) -> None:
    found = look(gpu(LONG, 30, GAP, **SIM), gpu("b", 5000, GAP), cpu("c"))
    lines = seen(found, width).splitlines()
    assert max(map(len, lines)) <= width
    first = [line.split(" ")[0] for line in lines[1 : lines.index("")]]
    assert LONG in "".join(first)


def test_the_same_thing_on_many_nodes_is_told_once() -> None:
    problems = [Problem(f"n{at}", "c", "fail", "same", "do", f"gpu {at % 2}") for at in range(9)]
    problems += [Problem("n1", "c", "warn", "same", "do"), Problem("", "whole", "fail", "m")]
    found = text.grouped(problems)
    assert [(severity, len(nodes)) for severity, _, nodes, _ in found] == [("fail", 0), ("fail", 9), ("warn", 1)]
    assert found[1][3] == ["gpu 0", "gpu 1"]
    told = seen(Survey((), tuple(problems)))
    assert "FAIL    c  n0, n1, n2, n3, n4, n5 and 3 more  (gpu 0, gpu 1)" in told
    assert "FAIL    whole  the cluster" in told


def test_ages_that_differ_do_not_split_a_problem() -> None:
    found = text.grouped(look(cpu("a", 1000), cpu("b", 5000)).problems)
    assert len(found) == 1 and found[0][2] == ["a", "b"]
    assert "(on a)" in seen(look(cpu("a", 1000), cpu("b", 5000)))


def test_colours_are_for_terminals_only() -> None:
    assert "\x1b[" in seen(look(gpu("a", 30, GAP)), terminal=True)
    assert "\x1b[" not in seen(look(gpu("a", 30, GAP)))


def test_what_a_report_says_cannot_steer_the_terminal() -> None:
    evil = Check(name="a\x1b[2J", severity="fail", subject="\x9b1m", message="[red]b\x07\r", remedy="c\x1b]0;x\x07")
    told = seen(look(gpu("a", 30, evil), only="a"), 100, "a")
    assert not {letter for letter in told if not letter.isprintable()} - {"\n"}
    assert "a?[2J" in told and "[red]b??" in told and "c?]0;x?" in told


def test_one_node_shows_devices_host_and_what_passed() -> None:
    told = seen(look(gpu("a", 30, GAP), gpu("b"), only="a"), 100, "a")
    assert "nvidia 1  NVIDIA H200  sm_90  141 GiB  0000:c1:00.0" in told
    assert "driver    nvidia 580.12, runtime 13.0" in told
    assert "network   eth0 10.0.0.3 25000 Mbit/s" in told
    assert "PASS  gpu-survey  -      2 NVIDIA devices" in told
    assert told.count("no kernels") == 1


def test_json_has_everything_and_is_json() -> None:
    told = json.loads(json.dumps(text.as_json(look(gpu("a", 30, GAP), node("b")))))
    assert (told["ready"], told["nodesTotal"], told["nodesReady"]) == (False, 2, 1)
    first, second = told["nodes"]
    assert first["devices"] == {"nvidia": 2} and first["variants"] == {"cuda": "verified"}
    assert first["problems"][0]["check"] == "kernel-coverage" and first["reportAgeSeconds"] == 30
    assert second["state"] == "no report" and second["reportAgeSeconds"] is None
