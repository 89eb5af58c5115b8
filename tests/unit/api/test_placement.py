"""Where new members may go, with which image, and what is said when nothing fits."""

import dataclasses
from typing import Any

import pytest

from fdl_api import labels
from fdl_api.nodes import NodeRecord
from fdl_api.placement import Cluster, Placement, Unplaced, Variant, candidates, lack, lacks, place
from fdl_api.run import Cohort, TrainerSpec
from tests.unit.nodes import T0, VARIANTS, node

TRAINER = TrainerSpec.model_validate({"source": {"image": {"path": "/app/train.py"}}})
H200 = {"vendor__nvidia": "true", "variant__cuda": "covers", "gpu_vendor": "nvidia"}
MI300 = {"vendor__amd": "true", "variant__rocm": "verified", "gpu_vendor": "amd"}
FAKE = {"vendor__nvidia": "true", "variant__cuda": "simulated", "simulated": "true"}


def cohort(vendor: str = "cpu", **more: Any) -> Cohort:
    return Cohort.model_validate({"name": "a", "vendor": vendor, **more})


def cluster(*nodes: NodeRecord, variants: tuple[Variant, ...] = VARIANTS) -> Cluster:
    return Cluster({each.name: each for each in nodes}, variants, 600, T0)


def placed(found: Placement | Unplaced) -> Placement:
    assert isinstance(found, Placement), found
    return found


def unplaced(found: Placement | Unplaced) -> Unplaced:
    assert isinstance(found, Unplaced), found
    return found


def test_a_cpu_cohort_runs_where_no_prober_ever_ran() -> None:
    found = placed(place(cohort(), TRAINER, cluster(node(report_age=None))))
    assert (found.variant, found.image, found.required) == ("cpu", "reg/trainer-cpu:1", ())


def test_a_cpu_cohort_asks_for_ready_nodes_once_a_prober_labels_any() -> None:
    found = placed(place(cohort(), TRAINER, cluster(node("a"), node("b", report_age=None))))
    assert found.required == (("fdl.dev/ready", ("true",)),)


def test_a_gpu_cohort_is_pinned_to_vendor_and_variant() -> None:
    found = placed(place(cohort("nvidia"), TRAINER, cluster(node("c"), node("g", **H200))))
    assert found.image == "reg/trainer-cuda:1"
    assert ("fdl.dev/vendor.nvidia", ("true",)) in found.required
    assert ("fdl.dev/variant.cuda", ("covers", "verified")) in found.required


def test_what_several_nodes_lack_is_said_once() -> None:
    nodes = [node(f"c{i}") for i in range(10)]
    found = unplaced(place(cohort("nvidia"), TRAINER, cluster(*nodes)))
    assert found.message.count("lacks label") == 1
    assert found.message.endswith("=true (likewise c1, c2, c3, c4, c5, c6, c7); and 2 more")


def test_amd_and_nvidia_cohorts_never_share_a_choice() -> None:
    where = cluster(node("g", **H200), node("m", **MI300))
    assert placed(place(cohort("amd"), TRAINER, where)).variant == "rocm"
    assert placed(place(cohort("nvidia"), TRAINER, where)).variant == "cuda"


def test_the_sentence_names_what_each_node_lacks() -> None:
    gap = node("g", **(H200 | {"variant__cuda": "gap"}))
    found = unplaced(place(cohort("nvidia"), TRAINER, cluster(node("c"), gap)))
    assert found.reason == "NoFittingNode"
    assert "node c lacks label fdl.dev/vendor.nvidia=true" in found.message
    assert "node g has label fdl.dev/variant.cuda=gap, not covers or verified" in found.message


def test_a_simulated_device_is_never_taken_for_a_real_one() -> None:
    found = unplaced(place(cohort("nvidia"), TRAINER, cluster(node("f", **FAKE))))
    assert "fdl.dev/variant.cuda=simulated" in found.message


def test_a_cohort_that_allows_it_runs_the_cpu_image_on_simulated_devices() -> None:
    found = placed(place(cohort("nvidia", allowSimulated=True), TRAINER, cluster(node("f", **FAKE))))
    assert found.simulated and found.image == "reg/trainer-cpu:1" and found.variant == "cuda"
    assert ("fdl.dev/simulated", ("true",)) in found.required


def test_real_devices_come_first_also_for_a_cohort_that_allows_simulated_ones() -> None:
    where = cluster(node("f", **FAKE), node("f2", **FAKE), node("g", **H200))
    found = placed(place(cohort("nvidia", allowSimulated=True), TRAINER, where))
    assert not found.simulated and found.image == "reg/trainer-cuda:1"


def test_the_variant_that_fits_most_nodes_is_taken_and_then_kept() -> None:
    two = (*VARIANTS, Variant("cuda12", "nvidia", "reg/cuda12:1"))
    first = node("g1", **H200)
    both = [node(f"g{n}", **{**H200, "variant__cuda": "gap", "variant__cuda12": "covers"}) for n in (2, 3)]
    where = cluster(first, *both, variants=two)
    assert placed(place(cohort("nvidia"), TRAINER, where)).variant == "cuda12"
    assert placed(place(cohort("nvidia"), TRAINER, where, keep="cuda")).variant == "cuda"


def test_a_named_variant_is_the_only_one() -> None:
    found = unplaced(place(cohort("nvidia", variant="cuda11"), TRAINER, cluster(node("g", **H200))))
    assert "no variant 'cuda11'" in found.message and "cuda (nvidia)" in found.message


def test_no_variant_for_a_vendor_says_what_to_add() -> None:
    found = unplaced(place(cohort("amd"), TRAINER, cluster(node("m", **MI300), variants=VARIANTS[:1])))
    assert "no image for vendor amd" in found.message and "spec.trainer.image" in found.message


def test_a_vendor_that_no_node_has_is_not_said_to_lack_an_image_only() -> None:
    """An image would not help: who built one first would read the same about the nodes afterwards."""
    where = cluster(node("c1"), node("g1", **H200), variants=VARIANTS[:1])
    message = unplaced(place(cohort("amd"), TRAINER, where)).message
    assert f"node c1 lacks label {labels.vendor('amd')}=true (likewise g1)" in message
    assert "nor has FdlCluster/default spec.variants an image for it (it has: cpu (cpu))" in message


@pytest.mark.parametrize(("own", "image"), [({}, "my/trainer:2"), ({"image": "my/cohort:3"}, "my/cohort:3")])
def test_images_of_the_run_and_of_the_cohort_go_before_the_variants(own: dict[str, str], image: str) -> None:
    trainer = TRAINER.model_copy(update={"image": "my/trainer:2"})
    assert placed(place(cohort(**own), trainer, cluster(node(), variants=()))).image == image


def test_nodes_with_an_old_report_get_no_new_member() -> None:
    found = placed(place(cohort(), TRAINER, cluster(node("new"), node("old", report_age=601))))
    assert found.excluded == ("old",)


def test_only_old_reports_is_a_reason_of_its_own() -> None:
    found = unplaced(place(cohort(), TRAINER, cluster(node("old", report_age=601))))
    assert found.reason == "ReportTooOld" and "older than 600 s" in found.message


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"unschedulable": True}, "is cordoned"),
        ({"ready": False}, "is not ready"),
        ({"taints": (("team", "x", "NoSchedule"),)}, "has taint team=x:NoSchedule"),
    ],
)
def test_nodes_that_take_no_pods_do_not_fit(change: dict[str, Any], problem: str) -> None:
    found = unplaced(place(cohort(), TRAINER, cluster(dataclasses.replace(node(), **change))))
    assert problem in found.message


def test_tolerated_taints_and_those_of_gpus_do_not_matter() -> None:
    tainted = dataclasses.replace(node(), taints=(("team", "x", "NoSchedule"), ("a", "", "PreferNoSchedule")))
    assert placed(place(cohort(tolerations=[{"key": "team", "operator": "Exists"}]), TRAINER, cluster(tainted)))
    gpu = dataclasses.replace(node("g", **H200), taints=(("nvidia.com/gpu", "present", "NoSchedule"),))
    assert placed(place(cohort("nvidia"), TRAINER, cluster(gpu)))


def test_a_node_selector_is_joined_with_our_own_labels() -> None:
    where = cluster(node("a", zone="x"), node("b"))
    found = placed(place(cohort(nodeSelector={"fdl.dev/zone": "x"}), TRAINER, where))
    assert found.required == (("fdl.dev/ready", ("true",)), ("fdl.dev/zone", ("x",)))


def test_all_that_a_node_lacks_is_told_and_the_first_of_it_is_the_reason() -> None:
    off = dataclasses.replace(node("g"), unschedulable=True, ready=False, taints=(("team", "x", "NoSchedule"),))
    required = (("fdl.dev/vendor.nvidia", ("true",)), ("fdl.dev/ready", ("true",)))
    assert list(lacks(off, required)) == [
        "lacks label fdl.dev/vendor.nvidia=true",
        "is cordoned",
        "is not ready",
        "has taint team=x:NoSchedule, which the cohort does not tolerate",
    ]
    assert lack(off, required) == "lacks label fdl.dev/vendor.nvidia=true"


def test_candidates_come_in_their_listed_order_and_those_on_simulated_devices_last() -> None:
    two = (*VARIANTS, Variant("cuda12", "nvidia", "reg/cuda12:1"))
    found = candidates(cohort("nvidia", allowSimulated=True), TRAINER, cluster(node("g", **H200), variants=two))
    assert [(each.variant.name, each.simulated) for each in found] == [
        ("cuda", False),
        ("cuda12", False),
        ("cuda", True),
        ("cuda12", True),
    ]
    assert ("fdl.dev/variant.cuda12", ("covers", "verified")) in found[1].required
