"""Checks: what is found, how grave it is, and that a remedy is always there."""

from typing import Any

import pytest

from fdl_api.report import Check, Interface, Sentinel
from fdl_prober import checks, decide
from fdl_prober.facts import Facts
from fdl_prober.kfd import KfdReport

from .stories import CPU, CUDA, HOST, NOW, amd, facts, nvidia, result, seen


def grave(found: Facts) -> list[tuple[str, str]]:
    return [(check.name, check.severity) for check in checks.run(found) if check.severity != "pass"]


def of(found: Facts, name: str) -> list[Check]:
    return [check for check in checks.run(found) if check.name == name]


def test_a_healthy_cpu_node_has_nothing_to_say() -> None:
    assert grave(facts(variants=(CPU,))) == []
    assert {check.name for check in checks.run(facts(variants=(CPU,)))} == {"gpu-survey", "interfaces", "clock"}


def test_a_healthy_gpu_node_has_nothing_to_say() -> None:
    assert grave(facts(seen(nvml=nvidia("sm_90")), variants=(CPU, CUDA))) == []


OLD = CUDA.model_copy(update={"archs": ("sm_70",)})
NODES: dict[str, tuple[Facts, str, str, bool]] = {
    "driver not loaded": (facts(seen(plugged={"nvidia": 1})), "gpu-driver", "fail", False),
    "driver answers without a device": (facts(seen(nvml=nvidia(), plugged={"nvidia": 1})), "gpu-driver", "fail", False),
    "no KFD": (facts(seen(plugged={"amd": 1})), "gpu-driver", "fail", False),
    "KFD hidden": (facts(seen(kfd=KfdReport(source="/s", hidden=2), plugged={"amd": 2})), "gpu-driver", "fail", False),
    "KFD nonsense": (facts(seen(kfd=KfdReport(source="/s", error="x: y"))), "gpu-driver", "fail", False),
    "unknown architecture": (facts(seen(nvml=nvidia(""))), "gpu-survey", "warn", False),
    "closed device file": (
        facts(seen(nvml=nvidia("sm_90"), closed_devices=("/dev/nvidia0 has mode 0600",))),
        "device-files",
        "fail",
        True,
    ),
    "no variant for the vendor": (facts(seen(kfd=amd("gfx942")), variants=(CPU,)), "variant-metadata", "warn", False),
    "cluster unknown": (facts(variants=(), cluster_known=False), "variant-metadata", "warn", False),
    "gap": (facts(seen(nvml=nvidia("sm_90")), variants=(CPU, OLD)), "kernel-coverage", "fail", False),
    "no interface": (
        facts(seen(host=HOST.model_copy(update={"interfaces": (Interface(name="eth0", up=False),)}))),
        "interfaces",
        "fail",
        True,
    ),
    "sentinel missing": (
        facts(seen(sentinel=Sentinel(path="/v/x", error="No such file or directory"))),
        "shared-volume",
        "fail",
        True,
    ),
    "clock off": (facts(clock_offset_seconds=7.0), "clock", "warn", False),
    "clock far off": (facts(clock_offset_seconds=-40.0), "clock", "fail", True),
}


@pytest.mark.parametrize("story", NODES)
def test_what_is_wrong_is_found_with_its_gravity(story: str) -> None:
    found, name, severity, blocking = NODES[story]
    bad = [check for check in of(found, name) if check.severity != "pass"]
    assert [(check.severity, check.blocking) for check in bad] == [(severity, blocking)]
    report = decide.report(found, NOW)
    assert report.ready is not blocking


@pytest.mark.parametrize("story", NODES)
def test_every_finding_is_a_sentence_with_a_remedy(story: str) -> None:
    for check in checks.run(NODES[story][0]):
        assert check.message
        assert bool(check.remedy) is (check.severity != "pass")
        assert check.remedy == "" or check.remedy.endswith(".")


def test_the_remedy_for_hidden_amd_devices_names_the_chart_value() -> None:
    (check,) = of(NODES["KFD hidden"][0], "gpu-driver")
    assert "driver-not-ready" in check.message
    assert "prober.privileged=true" in check.remedy


def test_ptx_only_is_a_warning() -> None:
    ptx = result(decide.report(facts(seen(nvml=nvidia("sm_90"))), NOW), CUDA)
    assert ptx.facts is not None
    own = ptx.facts.model_copy(update={"archs": ("sm_70", "compute_70")})
    found = facts(
        seen(nvml=nvidia("sm_90")), deep={"cuda": ptx.model_copy(update={"facts": own})}, variants=(CPU, CUDA)
    )
    assert [(check.severity, check.subject) for check in of(found, "kernel-coverage")] == [("warn", "nvidia 0")]


def test_a_variant_for_older_devices_is_no_fault_of_a_node_that_another_one_covers() -> None:
    found = of(facts(seen(nvml=nvidia("sm_90"))), "kernel-coverage")
    assert [(check.severity, check.message) for check in found] == [("pass", "sm_90: cuda")]


def with_deep(**changes: Any) -> Facts:
    node = seen(nvml=nvidia("sm_90"))
    good = result(decide.report(facts(node), NOW), CUDA)
    facts_changes = changes.pop("facts", {})
    assert good.facts is not None
    own = good.facts.model_copy(update=facts_changes)
    return facts(node, variants=(CPU, CUDA), deep={"cuda": good.model_copy(update={"facts": own} | changes)})


def test_nccl_that_differs_from_the_list_is_told() -> None:
    assert [check.severity for check in of(with_deep(), "nccl-library")] == ["pass"]
    (differs,) = of(with_deep(facts={"nccl_version": "2.28.1"}), "nccl-library")
    assert (differs.severity, "2.28.1" in differs.message, "2.27.5" in differs.message) == ("warn", True, True)
    (none,) = of(with_deep(facts={"nccl_version": ""}), "nccl-library")
    assert none.severity == "fail"
    assert of(with_deep(facts={"simulated": True, "nccl_version": ""}), "nccl-library") == []


@pytest.mark.parametrize(("outcome", "severity"), [("passed", "pass"), ("failed", "fail"), ("no-result", "warn")])
def test_deep_checks_are_told(outcome: str, severity: str) -> None:
    (check,) = of(with_deep(outcome=outcome, message="m"), "deep-check")
    assert (check.severity, check.subject, check.blocking) == (severity, "cuda", False)


def test_mig_is_told() -> None:
    cut = nvidia("sm_90")
    cut = cut.model_copy(update={"devices": (cut.devices[0].model_copy(update={"mig": True}),)})
    assert ("mig", "warn") in grave(facts(seen(nvml=cut)))


def test_a_steady_offset_gives_a_steady_sentence() -> None:
    """Else every look would be a change, and every change a write."""
    one, two = (of(facts(clock_offset_seconds=offset), "clock") for offset in (6.0, 6.9))
    assert one == two


def test_a_clock_within_the_resolution_is_fine() -> None:
    assert of(facts(clock_offset_seconds=2.9), "clock")[0].severity == "pass"
    assert of(facts(clock_offset_seconds=None), "clock") == []
