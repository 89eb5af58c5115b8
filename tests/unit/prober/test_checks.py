"""Checks: every finding of the catalogue on a node that has it, its gravity, and that nothing else changes."""

from typing import Any

import pytest

from fdl_api.checks import CHECKS
from fdl_api.report import Check, Device, Faults, Interface
from fdl_prober import checks, decide
from fdl_prober.box import Torch, VariantFile
from fdl_prober.checks.devices import ranges
from fdl_prober.checks.libtorch import running_glibc
from fdl_prober.devfiles import DeviceFile
from fdl_prober.facts import Facts
from fdl_prober.kernellog import Xid
from fdl_prober.nvml import NvmlReport
from fdl_prober.pci import PciGpu
from fdl_prober.processes import Holder

from .findings import FINDINGS, GIB, H100, MI300, box, checked, deep_error, device, file
from .stories import CPU, CUDA, HOST, NOW, amd, facts, nvidia, result, seen

OWN = [check for check in CHECKS if check.by == "prober"]


def grave(found: Facts) -> list[tuple[str, str]]:
    return [(check.name, check.severity) for check in checks.run(found) if check.severity != "pass"]


def of(found: Facts, name: str) -> list[Check]:
    return [check for check in checks.run(found) if check.name == name]


def reasons(found: Facts, name: str) -> list[str]:
    return [check.reason for check in of(found, name)]


def test_every_finding_of_the_catalogue_has_a_node_that_shows_it() -> None:
    assert set(FINDINGS) == {f"{check.name}/{entry.reason}" for check in OWN for entry in check.findings}


@pytest.mark.parametrize("story", FINDINGS)
def test_what_is_wrong_is_found_as_the_catalogue_says(story: str) -> None:
    name, reason = story.split("/")
    (info,) = (check for check in OWN if check.name == name)
    entry = info.finding(reason)
    (found,) = (check for check in of(FINDINGS[story], name) if check.reason == reason)
    assert (found.severity, found.persistence, found.blocking, found.remedy) == (
        entry.severity,
        entry.persistence,
        entry.blocking,
        entry.remedy,
    )
    assert decide.report(FINDINGS[story], NOW).ready is not entry.blocking
    place = "local" if FINDINGS[story].local else "cluster"
    assert info.place in ("both", place)


@pytest.mark.parametrize("story", FINDINGS)
def test_every_finding_is_a_sentence_with_a_remedy(story: str) -> None:
    for check in checks.run(FINDINGS[story]):
        assert check.message
        bad = check.severity != "pass"
        assert (bool(check.remedy), bool(check.reason), check.persistence is not None) == (bad, bad, bad)
        assert check.remedy == "" or check.remedy.endswith(".")


def test_a_healthy_cpu_node_has_nothing_to_say() -> None:
    assert grave(facts(variants=(CPU,))) == []
    assert {check.name for check in checks.run(facts(variants=(CPU,)))} == {"gpu-survey", "interfaces", "clock"}


def test_a_healthy_gpu_node_has_nothing_to_say() -> None:
    assert grave(facts(seen(nvml=nvidia("sm_90")), variants=(CPU, CUDA))) == []


def test_a_healthy_machine_outside_of_a_cluster_has_nothing_to_say() -> None:
    assert grave(box()) == []
    assert not {check.name for check in checks.run(box())} & {"clock", "variant-metadata", "variant-image"}


# --- devices --------------------------------------------------------------------------------------------------------


def test_devices_are_told_in_ranges_and_not_one_by_one() -> None:
    assert ranges([5, 0, 1, 2, 2]) == "0-2, 5"
    assert ranges([]) == ""
    (check,) = [c for c in of(facts(seen(nvml=nvidia(*[""] * 200))), "gpu-survey") if c.severity != "pass"]
    assert check.subject == "nvidia 0-199"


@pytest.mark.parametrize(
    ("archs", "told"), [((), "no devices"), (("sm_90",), "1 NVIDIA device"), (("sm_90", "sm_80"), "2 NVIDIA devices")]
)
def test_the_survey_counts_as_people_do(archs: tuple[str, ...], told: str) -> None:
    node = facts(seen(nvml=nvidia(*archs))) if archs else facts(variants=(CPU,))
    assert [check.message for check in of(node, "gpu-survey")] == [told]


def test_the_product_behind_an_unknown_architecture_is_told_by_its_number() -> None:
    node = seen(nvml=device(nvidia(""), pci="0000:10:00.0"), pci=(PciGpu("0000:10:00.0", "nvidia", "10de:2335"),))
    assert any("10de:2335" in text for check in of(facts(node), "gpu-survey") for text in check.evidence.values())


def test_a_driver_that_cannot_be_asked_is_unknown_and_not_a_fault() -> None:
    """What was not proved is not claimed: no label of devices, and none about what covers them."""
    for story in ("gpu-driver/no-answer", "gpu-driver/nonsense"):
        labels, _ = decide.desired(FINDINGS[story], NOW)
        assert labels["fdl.dev/gpu-vendor"] == "nvidia"  # by PCI
        assert not [key for key in labels if key.startswith(("fdl.dev/libtorch", "fdl.dev/count", "fdl.dev/arch"))]


def test_the_remedy_for_hidden_amd_devices_names_the_chart_value() -> None:
    (check,) = of(FINDINGS["gpu-driver/amd-hidden"], "gpu-driver")
    assert "driver-not-ready" in check.message
    assert "prober.privileged=true" in check.remedy


def test_a_stuck_topology_is_no_answer() -> None:
    node = facts(seen(silent={"kfd": "it did not end within 10 s"}, plugged={"amd": 1}))
    assert reasons(node, "gpu-driver") == ["no-answer"]
    assert reasons(node, "host-survey") == []


@pytest.mark.parametrize(
    ("changes", "local", "found"),
    [
        ({"mode": 0o666}, False, ""),
        ({"mode": 0o660}, False, "group-needed"),
        ({"mode": 0o640}, False, "closed"),
        ({"exists": False}, False, None),
        ({"mode": 0o660}, True, ""),
        ({"mode": 0o600, "failure": 13}, True, "not-openable"),
        ({"mode": 0o600}, True, ""),
        ({"mode": 0o660, "failure": 16}, True, ""),
    ],
    ids=["all", "group", "none", "not given", "own group", "refused", "own file", "busy"],
)
def test_who_may_open_a_device_file(changes: dict[str, Any], local: bool, found: str | None) -> None:
    observed = {"nvml": H100, "device_files": (file(**changes),)}
    node = box(observed=observed) if local else facts(seen(**observed))
    assert reasons(node, "device-files") == ([] if found is None else [found])


def test_the_group_that_is_missing_is_named() -> None:
    (check,) = of(FINDINGS["device-files/group-needed"], "device-files")
    assert "render (109)" in check.message and "supplementalGroups" in check.remedy


def test_many_closed_files_are_told_in_few_lines() -> None:
    files = tuple(DeviceFile(f"/dev/nvidia{i}", mode=0o600) for i in range(200))
    found = of(facts(seen(nvml=H100, device_files=files)), "device-files")
    assert len(found) == checks.MAX_ALIKE + 1 and "184 more" in found[-1].message
    assert (found[-1].blocking, found[-1].subject) == (True, "others")


def test_the_worst_node_still_fits_into_an_annotation() -> None:
    """All annotations of an object together may have 256 KiB."""
    faults = Faults(ecc_uncorrected=1, remap_failed=True, recovery="gpu-reset")
    devices = tuple(
        Device(
            vendor="nvidia", index=i, name="N" * 96, uuid="G" * 40, pci=f"0000:{i:02x}:00.0", mig=True, faults=faults
        )
        for i in range(256)
    )
    files = tuple(DeviceFile(f"/dev/nvidia{i}", mode=0o600) for i in range(256))
    node = facts(seen(nvml=NvmlReport(library="l", loaded=True, devices=devices), device_files=files))
    assert len(decide.report(node, NOW).render().encode()) < 200_000


def test_a_card_lent_to_a_virtual_machine_is_not_missed() -> None:
    pci = (PciGpu("0000:10:00.0", "nvidia"), PciGpu("0000:20:00.0", "nvidia", driver="vfio-pci"))
    node = facts(seen(nvml=device(H100, pci="0000:10:00.0"), plugged={"nvidia": 2}, pci=pci))
    assert of(node, "device-presence") == []


def test_a_lost_device_is_not_told_a_second_time_as_unclaimed() -> None:
    lost = FINDINGS["device-presence/lost"].seen.nvml
    pci = (PciGpu("0000:10:00.0", "nvidia"), PciGpu("0000:20:00.0", "nvidia"))
    node = facts(seen(nvml=device(lost, pci="0000:10:00.0"), plugged={"nvidia": 2}, pci=pci))
    assert reasons(node, "device-presence") == ["lost"]


def test_partitions_of_a_card_are_not_unclaimed_cards() -> None:
    node = FINDINGS["partitions/partitioned"].seen
    found = facts(seen(kfd=node.kfd, plugged={"amd": 1}, pci=(PciGpu("0000:05:00.0", "amd"),)))
    assert of(found, "device-presence") == []
    (check,) = of(found, "partitions")
    assert (check.subject, "1 card(s) in mode CPX count as 8 devices" in check.message) == ("amd 0-7", True)


@pytest.mark.parametrize("number", [13, 31, 43, 45, 68, 154])
def test_errors_of_applications_are_no_errors_of_the_device(number: int) -> None:
    assert of(facts(seen(nvml=H100, xids=(Xid("0000:10:00.0", number),))), "device-errors") == []


def test_an_xid_names_its_device() -> None:
    (check,) = of(FINDINGS["device-errors/xid"], "device-errors")
    assert (check.subject, "79" in check.message) == ("nvidia 0", True)


# --- libtorch -------------------------------------------------------------------------------------------------------


def test_a_variant_for_older_devices_is_no_fault_of_a_node_that_another_one_covers() -> None:
    found = of(facts(seen(nvml=nvidia("sm_90"))), "kernel-coverage")
    assert [(check.severity, check.subject, check.message) for check in found] == [
        ("pass", "nvidia sm_90", "covered by cuda")
    ]


@pytest.mark.parametrize(
    ("archs", "arch", "reason"),
    [
        (("sm_8",), "sm_86", "gap"),
        (("sm_86",), "sm_8", "gap"),
        (("sm_80",), "sm_86", ""),
        (("sm_90a",), "sm_90", ""),
        (("sm_90a",), "sm_100", "gap"),
        (("compute_90",), "sm_120", "ptx-only"),
        (("compute_120",), "sm_90", "gap"),
    ],
)
def test_nvidia_tokens_are_compared_by_their_parts(archs: tuple[str, ...], arch: str, reason: str) -> None:
    node = facts(seen(nvml=nvidia(arch)), variants=(CPU, CUDA.model_copy(update={"archs": archs})))
    assert reasons(node, "kernel-coverage") == [reason]


@pytest.mark.parametrize(("code", "arch"), [("gfx90", "gfx90a"), ("gfx90a", "gfx908"), ("gfx94", "gfx942")])
def test_amd_tokens_are_exact(code: str, arch: str) -> None:
    variant = CUDA.model_copy(update={"vendor": "amd", "archs": (code,)})
    assert reasons(facts(seen(kfd=amd(arch)), variants=(CPU, variant)), "kernel-coverage") == ["gap"]


def test_two_hundred_devices_are_one_line_for_each_architecture() -> None:
    found = of(facts(seen(nvml=nvidia(*["sm_90"] * 100, *["sm_75"] * 100))), "kernel-coverage")
    assert [check.subject for check in found] == ["nvidia sm_90", "nvidia sm_75"]


@pytest.mark.parametrize(("outcome", "severity"), [("passed", "pass"), ("failed", "fail"), ("no-result", "warn")])
def test_deep_checks_are_told(outcome: str, severity: str) -> None:
    (check,) = of(checked(outcome=outcome, message="m"), "deep-check")
    assert (check.severity, check.subject, check.blocking) == (severity, "cuda", False)


def test_a_bad_description_in_an_image_is_unknown_with_its_reason_and_proves_and_blocks_nothing() -> None:
    node = checked(told={"variant_file": "it is no JSON: Expecting value"})
    (check,) = of(node, "variant-file")
    assert (check.reason, check.severity, check.subject) == ("not-in-image", "unknown", "cuda")
    assert "variant.json in the image: it is no JSON" in check.message
    assert check.evidence == {"image": CUDA.image}
    assert decide.desired(node, NOW)[0] == decide.desired(checked(), NOW)[0], "no label depends on it"


def test_a_named_description_passes_or_is_told_why_not() -> None:
    good = '{"name": "x", "torchVersion": "2", "build": "cpu", "archs": []}'
    (check,) = of(box(variant_file=VariantFile("/v.json", text=good)), "variant-file")
    assert (check.severity, check.subject) == ("pass", "/v.json")
    (check,) = of(box(variant_file=VariantFile("/v.json", text=good.replace('"2"', "2"))), "variant-file")
    assert (check.reason, "torchVersion" in check.message) == ("garbage", True)


def test_the_loader_says_which_c_library_torch_needs() -> None:
    node = deep_error("torch does not load: /lib/libc.so.6: version `GLIBC_2.34' not found (required by libtorch.so)")
    (check,) = of(node, "glibc")
    assert (check.reason, "2.34" in check.message, check.subject) == ("too-old", True, "cuda")
    assert of(node, "nccl-library") == []


@pytest.mark.parametrize(
    ("library", "check", "reason"),
    [
        ("libamdhip64.so.6", "rocm-userspace", "missing"),
        ("librocblas.so.4", "rocm-userspace", "missing"),
        ("libnccl.so.2", "nccl-library", "none-loaded"),
        ("librccl.so.1", "nccl-library", "none-loaded"),
    ],
)
def test_the_loader_says_which_library_torch_misses(library: str, check: str, reason: str) -> None:
    words = f"torch does not load: {library}: cannot open shared object file: No such file or directory"
    assert reasons(deep_error(words), check) == [reason]
    (found,) = of(deep_error(words), check)
    assert library in found.message


def test_another_c_library_is_not_compared() -> None:
    assert running_glibc("glibc 2.36") == (2, 36)
    assert running_glibc("") is None
    torch = Torch("2.10.0", "cu128", (2, 28))
    musl = HOST.model_copy(update={"glibc": ""})
    assert of(box(observed={"host": musl}, torch=torch), "glibc") == []
    assert reasons(box(observed={"host": HOST.model_copy(update={"glibc": "glibc 2.28"})}, torch=torch), "glibc") == [
        ""
    ]


# --- nccl -----------------------------------------------------------------------------------------------------------


def test_nccl_that_differs_from_the_list_is_told() -> None:
    assert [check.severity for check in of(checked(), "nccl-library")] == ["pass"]
    (differs,) = of(checked(told={"nccl_version": "2.28.1"}), "nccl-library")
    assert "2.28.1" in differs.message and "2.27.5" in differs.message
    assert reasons(checked(told={"nccl_version": "2.27.9"}), "nccl-library") == [""]
    assert of(checked(told={"simulated": True, "nccl_version": ""}), "nccl-library") == []


def test_a_machine_without_devices_needs_no_nccl() -> None:
    assert of(box(nccl={}, observed={"nvml": NvmlReport()}), "nccl-library") == []


def test_a_library_of_unknown_version_is_no_second_version() -> None:
    assert reasons(box(nccl={"/a/libnccl.so.2": "2.27.5", "/b/libnccl.so.2": ""}), "nccl-library") == [""]


# --- fabric, data, host ---------------------------------------------------------------------------------------------


def test_interfaces_are_told_with_speed_and_size_of_packets() -> None:
    fast = Interface(name="eth0", addresses=("10.0.0.7",), up=True, speed_mbps=25000, mtu=9000)
    (check,) = of(facts(seen(host=HOST.model_copy(update={"interfaces": (fast,)}))), "interfaces")
    assert check.message == "eth0 10.0.0.7 (25000 Mbit/s, MTU 9000)"


def test_an_interface_that_is_named_and_works_passes() -> None:
    assert reasons(facts(socket_interface="eth0"), "socket-interface") == [""]
    assert of(facts(), "socket-interface") == []


def test_a_machine_that_was_not_seen_is_not_judged() -> None:
    assert reasons(FINDINGS["host-survey/no-answer"], "interfaces") == []


def test_a_full_volume_is_not_also_a_broken_one() -> None:
    assert reasons(FINDINGS["disk-space/full"], "data-path") == [""]


def test_the_space_that_is_left_is_no_part_of_the_sentence() -> None:
    """Else every look would be a change, and every change a write."""
    one, two = (
        of(facts(seen(volumes={where: state.model_copy(update={"free_bytes": free})})), "disk-space")
        for free in (5 * GIB, 6 * GIB)
        for where, state in FINDINGS["disk-space/low"].seen.volumes.items()
    )
    assert one == two


def test_a_steady_offset_gives_a_steady_sentence() -> None:
    one, two = (of(facts(clock_offset_seconds=offset), "clock") for offset in (6.0, 6.9))
    assert one == two


def test_a_clock_within_the_resolution_is_fine() -> None:
    assert of(facts(clock_offset_seconds=2.9), "clock")[0].severity == "pass"
    assert of(facts(clock_offset_seconds=None), "clock") == []


@pytest.mark.parametrize(
    ("holder", "local", "told"),
    [
        ({"in_pod": True, "orphan": True}, False, False),
        ({"in_pod": False}, False, True),
        ({"orphan": True}, True, True),
        ({"orphan": False}, True, False),
        ({"in_pod": False, "bytes": 1 << 20}, False, False),
    ],
    ids=["a pod's", "no pod's", "left behind", "somebody's", "a display's"],
)
def test_memory_that_somebody_answers_for_is_not_stale(holder: dict[str, Any], local: bool, told: bool) -> None:
    held = {"pid": 7, "name": "python", "vendor": "nvidia", "bytes": 3 * GIB} | holder
    observed = {"nvml": H100, "holders": (Holder.model_validate(held),)}
    node = box(observed=observed) if local else facts(seen(**observed))
    assert bool(of(node, "stale-processes")) is told


def test_what_a_deep_check_verified_stays_so_on_a_node_with_other_troubles() -> None:
    node = seen(nvml=H100, kfd=MI300)
    good = result(decide.report(facts(node), NOW), CUDA)
    labels, _ = decide.desired(facts(node, deep={"cuda": good}), NOW)
    assert labels["fdl.dev/variant.cuda"] == "verified"


def test_devices_without_any_number_are_kept() -> None:
    plain = NvmlReport(library="l", loaded=True, devices=(Device(vendor="nvidia", index=0),))
    assert grave(facts(seen(nvml=plain)))
