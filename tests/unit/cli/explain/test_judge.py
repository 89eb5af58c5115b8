"""Per node, what a cohort finds or misses."""

from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fdl_api.placement import Unplaced, options
from fdl_api.run import FdlRunSpec, FdlRunStatus
from fdl_cli.explain import judge
from fdl_cli.explain.judge import BEHIND, CohortView, Run
from fdl_cli.explain.resources import space
from fdl_cli.fdlcluster import read
from fdl_cli.probe.rows import natural, records

from ..nodes import NOW, cluster, cpu, gpu, node

SIM = {"simulated": "true", "variant__cuda": "simulated"}


def run(mode: str = "cpu-cadence", status: dict[str, Any] | None = None, **cohort: Any) -> Run:
    spec = {
        "trainer": {"source": {"image": {"path": "/a.py"}}, **cohort.pop("trainer", {})},
        "mode": mode,
        "cohorts": [{"name": "a", "vendor": "nvidia", "replicas": 2, "devicesPerReplica": 2, **cohort}],
    }
    return Run("ns", "r", FdlRunSpec.model_validate(spec), FdlRunStatus.model_validate(status or {}))


def view(
    found: Run, nodes: Iterable[dict[str, Any]], where: dict[str, Any] | None = None, pods: Any = ()
) -> CohortView:
    listed = list(nodes)
    context = judge.context(records(listed), read(where or cluster()), NOW.timestamp())
    spaces = {each["metadata"]["name"]: space(each, pods) for each in listed}
    return judge.view(found, found.spec.cohorts[0], context, sorted(spaces, key=natural), spaces.__getitem__)


def why(seen: CohortView) -> dict[str, tuple[str, ...]]:
    return {verdict.node: verdict.why for verdict in seen.verdicts}


def fits(seen: CohortView) -> dict[str, str]:
    return {verdict.node: verdict.fits for verdict in seen.verdicts}


def test_a_node_that_fits_gets_a_variant_and_the_others_say_all_that_they_lack() -> None:
    cordoned = cpu("c")
    cordoned["spec"]["unschedulable"] = True
    seen = view(run(), [gpu("g"), gpu("gap", variant__cuda="gap"), cordoned, gpu("old", 901)])
    assert fits(seen) == {"g": "yes", "gap": "no", "c": "no", "old": "no"}
    assert next(each for each in seen.verdicts if each.node == "g").variant == "cuda"
    assert seen.sentence == ""
    assert why(seen)["c"] == (
        "lacks label fdl.dev/vendor.nvidia=true",
        "lacks label fdl.dev/variant.cuda=covers or verified",
        "is cordoned",
    )
    assert why(seen)["gap"] == ("has label fdl.dev/variant.cuda=gap, not covers or verified",)
    assert why(seen)["old"][0].startswith("has a report of 2026-03-01T02:44:59Z, older than 900 s")


def test_where_no_node_fits_the_operators_sentence_is_told() -> None:
    seen = view(run(), [cpu("c")])
    assert seen.sentence == "cohort a (vendor nvidia) fits no node"  # the rest is in the table
    assert fits(seen) == {"c": "no"}
    nothing = view(run(vendor="amd"), [cpu("c"), gpu("m", vendor__amd="true")])
    assert "has no image for vendor amd" in nothing.sentence
    missing = "has no variant that the cohort could use"
    assert why(nothing) == {"c": ("lacks label fdl.dev/vendor.amd=true", missing), "m": (missing,)}


def test_quarantine_taints_and_tolerations_of_the_cluster_count() -> None:
    tainted = gpu("t")
    tainted["spec"]["taints"] = [{"key": "team", "value": "x", "effect": "NoSchedule"}]
    where = cluster(defaults={"tolerations": [{"key": "team", "operator": "Exists"}]})
    where["status"]["quarantine"] = [{"name": "q", "source": "spec", "reason": "fan", "since": "2026-03-01T00:00:00Z"}]
    assert fits(view(run(), [tainted], where)) == {"t": "yes"}
    assert why(view(run(), [tainted]))["t"] == ("has taint team=x:NoSchedule, which the cohort does not tolerate",)
    assert why(view(run(), [gpu("q")], where))["q"] == ("is in quarantine: fan",)


def test_what_is_too_small_does_not_fit_and_what_is_busy_is_full() -> None:
    seen = view(run(), [gpu("one", count=1), gpu("two")])
    assert fits(seen) == {"one": "no", "two": "yes"}
    assert why(seen)["one"] == ("has 1 nvidia.com/gpu in all, and a member needs 2",)
    busy = {"spec": {"containers": [{"resources": {"requests": {"nvidia.com/gpu": "1"}}}]}, "status": {}}
    full = view(run(), [gpu("two")], pods=[busy])
    assert fits(full) == {"two": "full"} and full.verdicts[0].room == 0
    unknown = view(run(), [gpu("two")], pods=None)
    assert fits(unknown) == {"two": "yes"} and unknown.verdicts[0].room is None


def test_simulated_devices_come_behind_real_ones_and_are_told_by_name() -> None:
    both = view(run(allowSimulated=True), [gpu("real"), gpu("sim", **SIM)])
    assert fits(both) == {"real": "yes", "sim": "no"} and why(both)["sim"] == (BEHIND,)
    alone = view(run(allowSimulated=True), [gpu("sim", **SIM)])
    assert alone.verdicts[0].variant == "cuda (simulated)"


def test_another_nccl_is_told_in_nccl_modes_only() -> None:
    nodes = [gpu("a"), gpu("b", nccl__cuda="2.27"), gpu("c")]
    where = cluster(fabric={"groups": [{"name": "all", "socketInterface": "eth0"}]})
    seen = view(run("nccl-cadence"), nodes, where)
    assert fits(seen) == {"a": "yes", "b": "no", "c": "yes"}
    assert why(seen)["b"][0].startswith("loads NCCL 2.27 and the cohort runs 2.28")
    assert set(fits(view(run(), nodes, where)).values()) == {"yes"}
    kept = {"attemptStartTime": "2026-03-01T02:00:00Z", "cohorts": [{"name": "a", "nccl": "2.27"}]}
    assert fits(view(run("nccl-cadence", kept), nodes, where)) == {"a": "no", "b": "yes", "c": "no"}


def test_a_missing_interface_is_told_unless_the_run_names_one() -> None:
    nodes = [gpu("a"), gpu("b")]
    seen = view(run("nccl-cadence"), nodes)
    assert "is in no group of FdlCluster/default spec.fabric" in why(seen)["a"][0]
    named = {"env": [{"name": "NCCL_SOCKET_IFNAME", "value": "eth0"}]}
    assert fits(view(run("nccl-cadence", trainer=named), nodes)) == {"a": "yes", "b": "yes"}
    template = {"spec": {"containers": [{"name": "trainer", "env": named["env"]}]}}
    assert fits(view(run("nccl-cadence", podTemplate=template), nodes)) == {"a": "yes", "b": "yes"}


TRAINING = {
    "members": [
        {"name": "r-a-0-1", "cohort": "a", "ordinal": 0, "incarnation": 1, "node": "g1", "phase": "Running"},
        {"name": "r-b-0-1", "cohort": "b", "ordinal": 0, "incarnation": 1, "node": "g2", "phase": "Running"},
    ],
    "cohorts": [{"name": "a", "wanted": 2, "ready": 1, "variant": "cuda"}],
    "training": {
        "anchor": 10,
        "ranks": [
            {"member": "r-a-0-1", "localRank": 0, "msPerBatch": 4.0, "quota": 24},
            {"member": "r-a-0-1", "localRank": 1, "msPerBatch": 6.0, "quota": 16},
            {"member": "r-b-0-1", "msPerBatch": 10.0, "quota": 10},
            {"member": "gone", "msPerBatch": 0.0, "quota": 2},
        ],
    },
}


def test_speeds_are_measured_where_members_are_and_predicted_on_nodes_of_the_same_kind() -> None:
    other = gpu("g3")
    other["metadata"]["annotations"]["fdl.dev/report"] = other["metadata"]["annotations"]["fdl.dev/report"].replace(
        "H200", "A100"
    )
    seen = view(run(status=TRAINING), [gpu("g1"), gpu("g2"), other])
    told = {each.node: each.speed for each in seen.verdicts}
    assert told["g1"] is not None and (told["g1"].ms, told["g1"].quota, told["g1"].measured) == (5.0, 20, True)
    assert told["g2"] is not None and (told["g2"].ms, told["g2"].quota, told["g2"].measured) == (5.0, 20, False)
    assert told["g3"] is None
    assert [member.name for member in seen.verdicts[0].members] == ["r-a-0-1"]
    assert (seen.wanted, seen.ready) == (2, 1)


def test_without_training_nothing_is_predicted() -> None:
    seen = view(run(), [gpu("g1")])
    assert seen.verdicts[0].speed is None and (seen.wanted, seen.ready) == (2, 0)


TAGS = st.dictionaries(
    st.sampled_from(["ready", "vendor__nvidia", "variant__cuda", "nccl__cuda", "simulated"]),
    st.sampled_from(["true", "false", "verified", "gap", "simulated", "2.28", "2.27"]),
)


@given(
    tags=st.lists(TAGS, min_size=1, max_size=5),
    mode=st.sampled_from(["cpu-cadence", "nccl-cadence"]),
    allow=st.booleans(),
    selector=st.sampled_from([{}, {"zone": "x"}]),
)
def test_what_does_not_fit_always_says_why_and_some_node_fits_exactly_where_the_operator_places(
    tags: list[dict[str, str]], mode: str, allow: bool, selector: dict[str, str]
) -> None:
    nodes = [gpu(f"g{at}", **own) for at, own in enumerate(tags)] + [node("bare"), cpu("c")]
    found = run(mode, allowSimulated=allow, nodeSelector=selector)
    seen = view(found, nodes)
    assert all(verdict.why for verdict in seen.verdicts if verdict.fits == "no")
    cohort = found.spec.cohorts[0]
    context = judge.context(records(nodes), read(cluster()), NOW.timestamp())
    placed = options(cohort, found.spec.trainer, context, communicator=judge.asked(found, cohort))
    assert any(verdict.fits == "yes" for verdict in seen.verdicts) is not isinstance(placed, Unplaced)
    assert bool(seen.sentence) is isinstance(placed, Unplaced)
