"""What a member asks, and what a node has left."""

from decimal import Decimal
from typing import Any

import pytest

from fdl_api.run import Cohort, TrainerSpec
from fdl_cli.explain.resources import amounts, need, reserved, room, short, space, too_small

from ..nodes import gpu


def cohort(**more: Any) -> Cohort:
    return Cohort.model_validate({"name": "a", "vendor": "nvidia", "devicesPerReplica": 2, **more})


def trainer(**resources: Any) -> TrainerSpec:
    return TrainerSpec.model_validate({"source": {"image": {"path": "/a.py"}}, "resources": resources})


def test_quantities_are_read_in_base_units() -> None:
    assert amounts({"cpu": "1500m", "memory": "2Gi", "x": 3, "bad": "?"}) == {
        "cpu": Decimal("1.5"),
        "memory": Decimal(2 << 30),
        "x": Decimal(3),
        "bad": Decimal(0),
    }


def test_a_member_needs_requests_or_limits_and_its_devices() -> None:
    asked = trainer(requests={"cpu": "2"}, limits={"cpu": "4", "memory": "1Gi"})
    assert need(cohort(), asked) == {"cpu": 2, "memory": 1 << 30, "pods": 1, "nvidia.com/gpu": 2}
    assert need(cohort(deviceResource="nvidia.com/mig-1g"), trainer())["nvidia.com/mig-1g"] == 2
    assert need(cohort(vendor="cpu"), trainer()) == {"pods": 1}
    own = cohort(vendor="amd", resources={"requests": {"cpu": "1"}})
    assert need(own, asked) == {"cpu": 1, "pods": 1, "amd.com/gpu": 2}


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ([{"c": "1"}, {"c": "2"}], "3"),
        ([{"c": "1"}, {"i": "5"}, {"i": "2"}], "5"),
        ([{"c": "3"}, {"i": "2"}], "3"),
        ([{"c": "1"}, {"s": "1500m"}], "2.5"),
    ],
)
def test_containers_and_sidecars_add_up_and_init_containers_do_not(spec: list[dict[str, str]], cpu: str) -> None:
    def entry(value: str, **more: str) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": value}}, **more}

    pod = {
        "containers": [entry(part["c"]) for part in spec if "c" in part],
        "initContainers": [
            *(entry(part["i"]) for part in spec if "i" in part),
            *(entry(part["s"], restartPolicy="Always") for part in spec if "s" in part),
        ],
        "overhead": {"memory": "1Gi"},
    }
    assert reserved(pod) == {"pods": 1, "cpu": Decimal(cpu), "memory": 1 << 30}


def running(**requests: str) -> dict[str, Any]:
    return {"spec": {"containers": [{"resources": {"requests": requests}}]}, "status": {"phase": "Running"}}


def test_what_is_free_is_what_no_living_pod_has_reserved() -> None:
    dead = running(cpu="60") | {"status": {"phase": "Failed"}}
    have = space(gpu("a", count=4), [running(cpu="3500m", **{"nvidia.com/gpu": "2", "other/x": "1"}), dead])
    assert have.free is not None
    assert (have.free["cpu"], have.free["nvidia.com/gpu"], have.free["pods"]) == (60, 2, 109)
    assert "other/x" not in have.free
    assert room(need(cohort(), trainer()), have) == 1
    assert room(need(cohort(vendor="cpu"), trainer(requests={"cpu": "25"})), have) == 2


def test_too_little_at_all_and_too_little_now_are_told_apart() -> None:
    asked = need(cohort(), trainer(requests={"memory": "300Gi"}))
    small = space(gpu("a", count=1), [])
    assert too_small(asked, small) == ["has 1 nvidia.com/gpu in all, and a member needs 2"]
    busy = space(gpu("a"), [running(memory="250Gi", **{"nvidia.com/gpu": "2"})])
    assert too_small(asked, busy) == []
    assert short(asked, busy) == [
        "has 250 of 500 GiB memory free, and a member needs 300",
        "has 0 of 2 nvidia.com/gpu free, and a member needs 2",
    ]
    assert room(asked, busy) == 0


def test_unknown_pods_are_no_reason() -> None:
    have = space(gpu("a"), None)
    asked = need(cohort(), trainer())
    assert (short(asked, have), room(asked, have)) == ([], None)
