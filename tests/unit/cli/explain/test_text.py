"""The tables of ``fdl explain``."""

import io
from typing import Any

import pytest
from rich.console import Console, RenderableType

from fdl_cli.explain import text

from ..nodes import CONTROL_PLANE, cpu, gpu, node
from .test_judge import TRAINING, run, view


def seen(what: RenderableType, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    with console.capture() as capture:
        console.print(what)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


STATUS: dict[str, Any] = TRAINING | {
    "phase": "Running",
    "summary": {"members": "1/2"},
    "conditions": [
        {
            "type": kind,
            "status": status,
            "lastTransitionTime": "2026-03-01T02:00:00Z",
            "reason": "Because",
            "message": message,
        }
        for kind, status, message in (
            ("Placeable", "False", "cohort a: no node"),
            ("Formed", "True", "all are there"),
            ("Suspended", "False", "not suspended"),
            ("Failed", "False", ""),
        )
    ],
}
NODES = [gpu("g1"), gpu("g2"), gpu("g3", variant__cuda="gap"), cpu("c1"), cpu("c2"), node("m", taints=CONTROL_PLANE)]


def test_the_page_about_a_run() -> None:
    found = run(status=STATUS)
    told = seen(text.run(found, [view(found, NODES)], 100), 100)
    assert told == (
        "run ns/r  Running  mode cpu-cadence, 1/2 members\n"
        "Placeable is False, Because: cohort a: no node\n"
        "\n"
        "cohort a  vendor nvidia, 2 devices a member, variant auto; 1 of 2 members take part\n"
        "\n"
        "NODE          FITS  ROOM  MEMBERS  MS/BATCH  QUOTA  WHY\n"
        "g1            yes      1  a-0           5.0     20  gets variant cuda\n"
        "g2            yes      1  -            ~5.0    ~20  gets variant cuda\n"
        "c1, c2        no       -  -               -      -  lacks labels fdl.dev/vendor.nvidia=true,\n"
        "                                                    fdl.dev/variant.cuda=covers or verified\n"
        "g3            no       -  -               -      -  has label fdl.dev/variant.cuda=gap, not covers\n"
        "                                                    or verified\n"
        "m             no       -  -               -      -  lacks labels fdl.dev/vendor.nvidia=true,\n"
        "                                                    fdl.dev/ready=true, fdl.dev/variant.cuda=covers\n"
        "                                                    or verified\n"
        "                                                    has taint\n"
        "                                                    node-role.kubernetes.io/control-plane:NoSchedule\n"
        "                                                    , which the cohort does not tolerate"
    )


def test_the_page_about_a_node_has_a_row_for_each_cohort() -> None:
    found = run(status=STATUS)
    told = seen(text.node([(found, view(found, [gpu("g1")]))], 100), 100).splitlines()
    assert told[0].startswith("RUN, COHORT") and told[1].startswith("ns/r a ") and "gets variant cuda" in told[1]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_screen(width: int) -> None:
    found = run(status=STATUS)
    long = [gpu("ip-10-0-12-34.eu-west-1.compute.internal"), *NODES]
    assert max(map(len, seen(text.run(found, [view(found, long)], width), width).splitlines())) <= width


def test_many_nodes_that_miss_the_same_are_one_row() -> None:
    found = run()
    told = seen(text.nodes(view(found, [cpu(f"c{at}") for at in range(20)]).verdicts, 120), 120)
    assert len(told.splitlines()) < 8 and "c7 and 12" in told


def test_a_member_on_a_node_that_does_not_fit_any_more_keeps_its_row() -> None:
    found = run(status=STATUS)
    told = seen(text.nodes(view(found, [gpu("g1", 5000), gpu("g2", 5000)]).verdicts, 120), 120)
    assert [line.split()[0] for line in told.splitlines() if " no " in line] == ["g1", "g2"]
    assert "a-0" in told and "5.0" in told


def test_the_legend_is_for_tables_that_need_one() -> None:
    assert text.legend(view(run(), [gpu("g")]).verdicts).plain == text.LEGEND
    assert text.legend(view(run(), [cpu("c")]).verdicts).plain == ""


def test_what_is_wrong_in_the_environment_is_told_once_with_its_remedy() -> None:
    bad = {"env": [{"name": "NCCL_PROTO", "value": "LL128"}]}
    found = run("nccl-sync", trainer=bad)
    told = seen(text.run(found, [], 200), 200)
    assert "FAIL nccl-environment/protocol: NCCL_PROTO=LL128 (spec.trainer.env): " in told
    assert "-> Remove NCCL_PROTO" in told
    failed = {
        "type": "Failed",
        "status": "True",
        "lastTransitionTime": "2026-03-01T02:00:00Z",
        "reason": "EnvironmentForbidden",
        "message": "NCCL_PROTO=LL128: no",
    }
    told = seen(text.run(run("nccl-sync", trainer=bad, status={"conditions": [failed]}), [], 200), 200)
    assert told.count("NCCL_PROTO=LL128") == 1
