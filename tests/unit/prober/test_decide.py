"""Labels: every kind of node, as a table."""

import itertools
import re
from typing import Any

import pytest

from fdl_api.report import DeepDevice, Host, Report
from fdl_api.report import parse as parse_report
from fdl_prober import decide
from fdl_prober.facts import Facts
from fdl_prober.observe import Observation

from .stories import ALL, CPU, CUDA, HOST, NOW, OLD_CUDA, ROCM, amd, facts, nvidia, result, seen


def labels(found: Facts) -> dict[str, str]:
    made, _ = decide.desired(found, NOW)
    return {key.removeprefix("fdl.dev/"): value for key, value in made.items()}


def test_a_node_without_devices() -> None:
    assert labels(facts()) == {
        "gpu-vendor": "none",
        "ready": "true",
        "vendor.cpu": "true",
        "variant.cpu": "covers",
        "libtorch-version": "2.6.0",
        "libtorch-build": "debian",
        "libtorch-coverage": "full",
    }


def test_two_nvidia_devices_of_unequal_age() -> None:
    assert labels(facts(seen(nvml=nvidia("sm_90", "sm_75"), plugged={"nvidia": 2}))) == {
        "gpu-vendor": "nvidia",
        "gpu-arch": "sm_75",
        "ready": "true",
        "vendor.cpu": "true",
        "vendor.nvidia": "true",
        "count.nvidia": "2",
        "arch.sm_75": "true",
        "arch.sm_90": "true",
        "variant.cpu": "covers",
        "variant.cuda": "covers",
        "variant.cuda-old": "gap",
        "nccl.cuda": "2.27",
        "nccl.cuda-old": "2.21",
        "nccl-version": "2.27.5",
        "libtorch-version": "2.10.0",
        "libtorch-build": "cu128",
        "libtorch-coverage": "full",
    }


def test_amd_devices() -> None:
    found = labels(facts(seen(kfd=amd("gfx942", "gfx942"), plugged={"amd": 2})))
    assert found["gpu-vendor"] == "amd"
    assert found["gpu-arch"] == "gfx942"
    assert (found["variant.rocm"], found["count.amd"], found["libtorch-build"]) == ("covers", "2", "rocm7.0")
    assert (found["nccl.rocm"], found["nccl-version"]) == ("2.26", "2.26.6")
    assert "variant.cuda" not in found
    assert "vendor.nvidia" not in found


def test_a_mixed_node_is_a_first_class_case_where_nvidia_wins_auto() -> None:
    found = labels(facts(seen(nvml=nvidia("sm_90"), kfd=amd("gfx1100"), plugged={"nvidia": 1, "amd": 1})))
    assert (found["gpu-vendor"], found["gpu-arch"]) == ("mixed", "sm_90")
    assert (found["vendor.nvidia"], found["vendor.amd"], found["vendor.cpu"]) == ("true", "true", "true")
    assert (found["variant.cuda"], found["variant.rocm"]) == ("covers", "gap")
    assert (found["libtorch-build"], found["libtorch-coverage"]) == ("cu128", "partial")
    assert found["ready"] == "true"


def test_a_device_that_nobody_covers() -> None:
    found = labels(facts(seen(nvml=nvidia("sm_120"), plugged={"nvidia": 1})))
    assert (found["variant.cuda"], found["variant.cuda-old"]) == ("gap", "gap")
    assert (found["libtorch-build"], found["libtorch-coverage"]) == ("debian", "none")


def test_some_devices_covered_is_a_gap_since_a_pod_may_get_any() -> None:
    found = labels(facts(seen(nvml=nvidia("sm_90", "sm_120"), plugged={"nvidia": 2})))
    assert (found["variant.cuda"], found["libtorch-coverage"]) == ("gap", "partial")


def test_unknown_architecture_is_not_absent_and_not_covered() -> None:
    found = labels(facts(seen(nvml=nvidia(""), plugged={"nvidia": 1})))
    assert (found["vendor.nvidia"], found["count.nvidia"], found["variant.cuda"]) == ("true", "1", "gap")
    assert "gpu-arch" not in found


def test_devices_of_a_driver_that_is_not_ready_are_no_target() -> None:
    found = labels(facts(seen(plugged={"nvidia": 4})))
    assert (found["gpu-vendor"], found["ready"], found["variant.cpu"]) == ("nvidia", "true", "covers")
    assert not any(key.startswith(("vendor.nvidia", "count.", "arch.", "variant.cuda")) for key in found)


def test_a_library_without_any_gpu_is_a_cpu_node() -> None:
    """A CPU machine made from a GPU image has NVIDIA's library and no device."""
    absent = nvidia().model_copy(update={"loaded": False, "missing": True, "error": "Driver Not Loaded"})
    found = labels(facts(seen(nvml=absent)))
    assert (found["gpu-vendor"], found["ready"]) == ("none", "true")


def test_no_variants_no_variant_labels() -> None:
    found = labels(facts(seen(nvml=nvidia("sm_90")), variants=()))
    assert not any(key.startswith(("variant.", "nccl", "libtorch")) for key in found)
    assert found["count.nvidia"] == "1"


# --- verified -------------------------------------------------------------------------------------------------------

NODES: dict[str, Observation] = {
    "none": seen(),
    "nvidia": seen(nvml=nvidia("sm_90"), plugged={"nvidia": 1}),
    "amd": seen(kfd=amd("gfx942"), plugged={"amd": 1}),
    "mixed": seen(nvml=nvidia("sm_90"), kfd=amd("gfx942"), plugged={"nvidia": 1, "amd": 1}),
    "not-ready": seen(plugged={"nvidia": 1}),
    "unknown": seen(nvml=nvidia(""), plugged={"nvidia": 1}),
}
OF = {"none": (CPU,), "nvidia": (CPU, CUDA), "amd": (CPU, ROCM), "mixed": (CPU, CUDA, ROCM)}


def report_of(name: str, **changes: Any) -> Report:
    return decide.desired(facts(NODES[name], **changes), NOW)[1]


@pytest.mark.parametrize(("name", "simulated"), list(itertools.product(NODES, (False, True))))
def test_nothing_is_verified_before_a_kernel_ran(name: str, simulated: bool) -> None:
    assert "verified" not in labels(facts(NODES[name], simulated=simulated)).values()


@pytest.mark.parametrize(("name", "variant"), [(name, variant) for name, group in OF.items() for variant in group])
def test_a_deep_check_verifies_its_own_variant_only(name: str, variant: Any) -> None:
    before = report_of(name)
    found = labels(facts(NODES[name], deep={variant.name: result(before, variant)}))
    assert [key for key, value in found.items() if value == "verified"] == [f"variant.{variant.name}"]


@pytest.mark.parametrize(
    "spoilt",
    [
        {"image": "r/cuda:2"},
        {"fingerprint": "other hardware"},
        {"outcome": "no-result", "facts": None},
        {"facts": None},
    ],
    ids=["another image", "other hardware", "no result", "no facts"],
)
def test_a_deep_check_of_something_else_verifies_nothing(spoilt: dict[str, Any]) -> None:
    before = report_of("nvidia")
    found = labels(facts(NODES["nvidia"], deep={"cuda": result(before, CUDA, **spoilt)}))
    assert found["variant.cuda"] == "covers"


def test_a_passed_outcome_without_a_kernel_verifies_nothing() -> None:
    good = result(report_of("nvidia"), CUDA)
    assert good.facts is not None
    none_ran = good.model_copy(update={"facts": good.facts.model_copy(update={"devices": ()})})
    assert labels(facts(NODES["nvidia"], deep={"cuda": none_ran}))["variant.cuda"] == "covers"


def test_a_kernel_that_went_wrong_is_a_gap_but_leaves_the_node_usable() -> None:
    good = result(report_of("nvidia"), CUDA)
    assert good.facts is not None
    bad = good.facts.model_copy(update={"devices": (DeepDevice(index=0, ok=False, error="x"),)})
    found = labels(facts(NODES["nvidia"], deep={"cuda": good.model_copy(update={"outcome": "failed", "facts": bad})}))
    assert (found["variant.cuda"], found["variant.cpu"], found["ready"]) == ("gap", "covers", "true")


@pytest.mark.parametrize("name", ["nvidia", "amd", "mixed"])
def test_simulated_devices_are_never_verified(name: str) -> None:
    before = report_of(name, simulated=True)
    every = {variant.name: result(before, variant, image=CPU.image) for variant in OF[name]}
    found = labels(facts(NODES[name], simulated=True, deep=every))
    covering = [f"variant.{variant.name}" for variant in OF[name]]
    assert {found[key] for key in covering} == {"simulated"}
    assert "verified" not in found.values()
    assert found.get("variant.cuda-old", "gap") == "gap"


def test_a_kernel_run_in_place_of_a_device_does_not_verify_a_real_one() -> None:
    good = result(report_of("nvidia"), CUDA)
    assert good.facts is not None
    pretended = good.model_copy(update={"facts": good.facts.model_copy(update={"simulated": True})})
    assert labels(facts(NODES["nvidia"], deep={"cuda": pretended}))["variant.cuda"] == "covers"


def test_what_torch_itself_says_beats_the_cluster_list() -> None:
    good = result(report_of("nvidia"), CUDA)
    assert good.facts is not None
    own = good.facts.model_copy(
        update={"archs": ("sm_75",), "nccl_version": "2.28.1", "torch_version": "2.11.0+cu130", "torch_build": "cu130"}
    )
    found = labels(facts(NODES["nvidia"], variants=(CPU, CUDA), deep={"cuda": good.model_copy(update={"facts": own})}))
    assert (found["variant.cuda"], found["nccl.cuda"]) == ("gap", "2.28")


def test_nccl_and_torch_come_from_the_deep_check() -> None:
    good = result(report_of("nvidia"), CUDA)
    assert good.facts is not None
    own = good.facts.model_copy(
        update={"nccl_version": "2.28.1", "torch_version": "2.11.0+cu130", "torch_build": "cu130"}
    )
    found = labels(facts(NODES["nvidia"], deep={"cuda": good.model_copy(update={"facts": own})}))
    assert (found["nccl.cuda"], found["nccl-version"]) == ("2.28", "2.28.1")
    assert (found["libtorch-version"], found["libtorch-build"]) == ("2.11.0", "cu130")


# --- all of them ----------------------------------------------------------------------------------------------------

VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
KEY = re.compile(r"fdl\.dev/[a-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


@pytest.mark.parametrize(("name", "simulated"), list(itertools.product(NODES, (False, True))))
def test_every_label_is_one_that_the_server_takes_and_that_is_ours(name: str, simulated: bool) -> None:
    made, report = decide.desired(facts(NODES[name], simulated=simulated), NOW)
    assert all(KEY.fullmatch(key) and VALUE.fullmatch(value) for key, value in made.items())
    assert "fdl.dev/simulated" not in made
    body = decide.apply_body("n1", made, report)
    assert body["metadata"] == {"name": "n1", "labels": made, "annotations": {"fdl.dev/report": report.render()}}
    assert set(body) == {"apiVersion", "kind", "metadata"}
    assert parse_report(report.render()) == report


@pytest.mark.parametrize("order", list(itertools.permutations(ALL)), ids=lambda order: "-".join(v.name for v in order))
def test_the_order_of_variants_changes_no_placement_label(order: tuple[Any, ...]) -> None:
    placement = ("vendor.", "count.", "arch.", "variant.", "nccl.")
    node = facts(NODES["mixed"], variants=order)
    fixed = facts(NODES["mixed"])
    assert {k: v for k, v in labels(node).items() if k.startswith(placement)} == {
        k: v for k, v in labels(fixed).items() if k.startswith(placement)
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [("2.6.0+debian", "2.6.0-debian"), ("", ""), ("-x-", "x"), ("a" * 80, "a" * 63), ("a" * 62 + "-b", "a" * 62)],
)
def test_label_values(text: str, value: str) -> None:
    assert decide.label_value(text) == value


def test_fingerprints_name_hardware_and_driver() -> None:
    one = report_of("nvidia").fingerprints
    assert one == report_of("nvidia").fingerprints
    assert set(one) == {"cpu", "nvidia"}
    newer = nvidia("sm_90").model_copy(update={"driver": "590.1"})
    assert decide.desired(facts(seen(nvml=newer)), NOW)[1].fingerprints["nvidia"] != one["nvidia"]
    other = decide.desired(facts(seen(nvml=nvidia("sm_90", "sm_90"))), NOW)[1].fingerprints
    assert other["nvidia"] != one["nvidia"]
    assert other["cpu"] == one["cpu"]


def test_old_variants_do_not_matter() -> None:
    assert labels(facts(NODES["nvidia"], variants=(CPU, OLD_CUDA)))["variant.cuda-old"] == "gap"


def test_members_on_the_processor_use_no_nccl_even_where_their_torch_has_one() -> None:
    good = result(report_of("none"), CPU)
    assert good.facts is not None
    own = good.facts.model_copy(update={"nccl_version": "2.28.9", "archs": CUDA.archs})
    found = labels(facts(deep={"cpu": good.model_copy(update={"facts": own})}))
    assert found["variant.cpu"] == "verified"
    assert not any(key.startswith("nccl") for key in found)


def test_a_look_at_the_machine_that_hangs_takes_no_proof_away() -> None:
    done = {"cpu": result(decide.report(facts(), NOW), CPU)}
    before, _ = decide.desired(facts(deep=done), NOW)
    stuck = facts(seen(host=Host(), silent={"host": "it did not end within 10 s"}), deep=done)
    after, report = decide.desired(stuck, NOW)
    assert before["fdl.dev/variant.cpu"] == after["fdl.dev/variant.cpu"] == "verified"
    assert not report.deep_wanted
    other = facts(seen(host=HOST.model_copy(update={"cpus": 16})), deep=done)
    assert decide.desired(other, NOW)[0]["fdl.dev/variant.cpu"] == "covers", "another machine is another matter"
