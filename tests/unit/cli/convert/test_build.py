"""What floDl's settings become."""

import dataclasses
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fdl_api import not_yet
from fdl_api.cluster import FdlCluster
from fdl_api.run import FdlRun
from fdl_cli.convert import show
from fdl_cli.convert.audit import audit
from fdl_cli.convert.build import ConvertError, Manifests, Wishes, build, run_name
from fdl_cli.convert.hosts import Group
from fdl_cli.convert.keys import KEYS
from fdl_cli.convert.source import parse
from fdl_cli.convert.variants import torch
from fdl_cli.convert.window import members_for

from .test_keys import SAMPLES, SPECIAL, with_key


def made(text: str, **wishes: str) -> Manifests:
    found = audit(parse(text, "f.yml"), wishes.get("command", ""))
    return build(found.tree, Wishes(**wishes))


def run(text: str, **wishes: str) -> dict[str, Any]:
    spec: dict[str, Any] = made(text, **wishes).objects[1]["spec"]
    return spec


def workers(*entries: str, more: str = "") -> str:
    lines = "".join(f"    - {{{entry}}}\n" for entry in entries)
    return f"cluster:\n  workers:\n{lines}{more}"


A = "host: a, local_devices: [0, 1], arch: precompiled/cu128"


def test_equal_hosts_are_one_cohort_and_others_are_their_own() -> None:
    text = workers(A, A.replace("a,", "b,"), "host: c, local_devices: [0], arch: builds/sm61", A)
    assert [
        (part["name"], part["replicas"], part["devicesPerReplica"], part["variant"]) for part in run(text)["cohorts"]
    ] == [("nvidia1", 3, 2, "cu128"), ("nvidia2", 1, 1, "sm61")]


def test_old_hosts_count_their_ranks_where_no_device_is_listed() -> None:
    text = "cluster:\n  master_addr: 1.2.3.4\n  hosts:\n    - {name: a, ranks: [0, 1, 2]}\n"
    assert run(text)["cohorts"] == [{"name": "nvidia", "vendor": "nvidia", "replicas": 1, "devicesPerReplica": 3}]


@pytest.mark.parametrize(
    ("entry", "note"),
    [
        ("host: a, local_devices: all", "host a takes all its devices"),
        ("host: a, local_devices: [1]", "host a uses devices 1 only"),
        (f"host: a, local_devices: {list(range(20))}", "host a has 20 devices; a member has 1 to 16"),
    ],
)
def test_what_is_not_said_about_devices_is_said_to_a_person(entry: str, note: str) -> None:
    assert any(note in each for each in made(workers(entry)).notes)


@pytest.mark.parametrize(
    ("arch", "vendor", "archs"),
    [
        ("precompiled/cu126", "nvidia", ("sm_50", "sm_52", "sm_60", "sm_61", "sm_70", "sm_75", "sm_80", "sm_86")),
        ("precompiled/rocm7.0", "amd", ("gfx908", "gfx90a", "gfx942")),
        ("builds/sm61-sm120", "nvidia", ("sm_61", "sm_120")),
        ("builds/gfx90a", "amd", ("gfx90a",)),
        ("precompiled/cpu", "cpu", ()),
        ("builds/mine", "nvidia", ()),
        ("builds/sm90-gfx942", "nvidia", ()),
        ("precompiled/rocm99", "amd", ()),
    ],
)
def test_a_libtorch_variant_says_vendor_and_architectures(arch: str, vendor: str, archs: tuple[str, ...]) -> None:
    found = torch(arch)
    assert (found.vendor, found.archs[: len(archs)]) == (vendor, archs)
    assert found.known == (bool(archs) or vendor == "cpu")


def test_a_variant_of_unknown_architectures_is_left_to_a_person() -> None:
    result = made(workers("host: a, local_devices: [0], arch: builds/mine"))
    assert "variants" not in result.objects[0]["spec"]
    assert any("variant for vendor nvidia: add one" in each and "'mine'" in each for each in result.todo)


@pytest.mark.parametrize(
    ("ddp", "more", "mode"),
    [
        ("", "", "nccl-cadence"),
        ("mode: nccl_sync", "", "nccl-sync"),
        ("mode: cpu-async", "", "cpu-async"),
        ("mode: nccl-async", "", "cpu-async"),
        ("mode: sync", "", "nccl-sync"),
        ("mode: solo-0", "", "nccl-cadence"),
        ("policy: async, backend: cpu", "", "cpu-async"),
        ("policy: sync", "", "nccl-sync"),
        ("mode: nccl-sync", "host: r, local_devices: [0], arch: precompiled/rocm70", "cpu-sync"),
        ("", "host: t, local_devices: [0, 1], arch: precompiled/cu128, tunnel: true", "cpu-cadence"),
    ],
)
def test_the_mode_is_one_that_the_cohorts_can_have(ddp: str, more: str, mode: str) -> None:
    text = workers(A, *([more] if more else []), more=f"ddp: {{{ddp}}}\n")
    assert run(text)["mode"] == mode


def test_ranks_become_members() -> None:
    two, one = Group("a", "nvidia", None, 2, 2, ()), Group("b", "nvidia", None, 1, 1, ())
    assert [members_for(ranks, [two, one]) for ranks in (1, 2, 3, 4, 5, 9)] == [1, 2, 2, 3, 3, 3]


@pytest.mark.parametrize(
    ("window", "join"),
    [
        ("{}", {"minMembers": 1}),
        (
            "{min_rank_start: 2, join_timeout: 60, target_ranks: 2}",
            {"minMembers": 1, "windowSeconds": 60, "targetMembers": 1},
        ),
        ("{join_timeout: 900}", {"minMembers": 1, "windowSeconds": 900, "capSeconds": 900}),
        ("{max_join_timeout: 10}", {"minMembers": 1, "windowSeconds": 10, "capSeconds": 10}),
        ("{discovery: true, open_admission: true}", {"minMembers": 1}),
    ],
)
def test_the_join_window(window: str, join: dict[str, Any]) -> None:
    assert run(workers(A, more=f"  controller: {{join: {window}}}\n")).get("join") == join


def test_a_start_by_hand_is_a_suspended_run() -> None:
    spec = run(workers(A, more="  controller: {join: {start: manual, target_ranks: 2}}\n"))
    assert spec["runPolicy"] == {"suspend": True} and "targetMembers" not in spec["join"]


def test_a_start_that_this_release_has_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    text = workers(A, more="  controller: {join: {start: hybrid}}\n")
    refused = made(text)
    assert "start" not in refused.objects[1]["spec"]["join"]
    assert any(each.startswith("start hybrid was left out; use 'auto'") for each in refused.notes)
    monkeypatch.setattr(not_yet, "RUN", ())
    assert run(text)["join"]["start"] == "hybrid"


def test_variables_of_all_hosts_are_the_runs_and_others_the_cohorts() -> None:
    text = workers(A + ", env: {B: '2', A: x}", more="  env: {A: cluster, N: 1, Y: true}\n")
    assert run(text)["trainer"]["env"] == [
        {"name": "A", "value": "x"},
        {"name": "B", "value": "2"},
        {"name": "N", "value": "1"},
        {"name": "Y", "value": "true"},
    ]
    spec = run(workers(A + ", env: {B: '2'}", A.replace("a,", "b,")))
    assert "env" not in spec["trainer"]
    containers = spec["cohorts"][0]["podTemplate"]["spec"]["containers"]
    assert containers == [{"name": "trainer", "env": [{"name": "B", "value": "2"}]}]
    assert "podTemplate" not in spec["cohorts"][1]


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "FDL_ENV", "FLODL_NET_TIMEOUT_SCALE", "LD_PRELOAD", "1ST"])
def test_variables_that_a_pod_cannot_have_are_left_out_by_name(name: str) -> None:
    result = made(workers(A, more=f"  env: {{{name}: x}}\n"))
    assert "env" not in result.objects[1]["spec"]["trainer"]
    assert any(each.startswith(f"env {name} was left out: ") for each in result.notes)


@pytest.mark.parametrize(
    ("ddp", "knobs"),
    [
        ("anchor: auto", None),
        ("anchor: 0", {"anchor": 1}),
        ("anchor: 2000", {"anchor": 1000, "maxAnchor": 1000}),
        ("max_anchor: 0", None),
        ("max_anchor: 5", {"anchor": 5, "maxAnchor": 5}),
        ("overhead_target: 0.9", {"overheadTarget": 0.5}),
        ("divergence_threshold: 0", {"divergenceThreshold": 1e-6}),
        ("max_batch_diff: 0", {"maxBatchDiff": 0}),
        ("partition_ratios: [0.7, 0.3]", {"partitionRatios": [0.7, 0.3]}),
        ("partition_ratios: [0.7, 0.7]", None),
    ],
)
def test_knobs_of_elche_stay_within_their_bounds(ddp: str, knobs: dict[str, Any] | None) -> None:
    assert run(workers(A, more=f"ddp: {{{ddp}}}\n")).get("elche") == knobs


def test_training_settings_and_options_become_arguments_in_a_fixed_order() -> None:
    text = workers(
        A,
        more="publish: {args: [--quiet]}\ntraining: {epochs: 5, seed: 1}\n"
        "commands:\n  fit:\n    cluster: true\n    training: {epochs: 9}\n"
        "    options: {model: m, check: true, dry: false, l: [1, 2]}\n",
    )
    assert run(text)["trainer"]["args"] == [
        *("--quiet", "--epochs", "9", "--seed", "1", "--model", "m", "--check", "--l", "1,2"),
    ]


def test_each_command_that_fans_out_is_a_run() -> None:
    text = workers(A, more="commands:\n  a-b: {cluster: true}\n  C_d: {cluster: true}\n  test: {run: x}\n")
    assert [each["metadata"]["name"] for each in made(text).objects] == ["default", "a-b", "c-d"]
    assert [each["metadata"]["name"] for each in made(text, command="test").objects] == ["default", "test"]
    with pytest.raises(ConvertError, match=r"no command 'x' in the files \(they have: a-b, C_d, test\)"):
        made(text, command="x")
    with pytest.raises(ConvertError, match="2 commands fan out"):
        made(text, name="one")


@pytest.mark.parametrize(
    ("text", "name"), [("Train_1", "train-1"), ("1st", "st"), ("---", "train"), ("é", "train"), ("x" * 50, "x" * 30)]
)
def test_a_runs_name_is_one_that_the_api_server_takes(text: str, name: str) -> None:
    assert run_name(text) == name == run_name(name)


def test_data_is_mounted_where_it_was() -> None:
    both = workers(A + ", data_path: /d/", A.replace("a,", "b,") + ", data_path: /e")
    result = made(both)
    assert result.objects[1]["spec"]["data"] == {"claim": "train-data", "mountPath": "/d"}
    assert any("data_path differs between hosts (/d/, /e)" in each for each in result.notes)
    assert run(workers(A, more="  controller: {data_path: /c}\n"))["data"]["mountPath"] == "/c"
    assert run(workers(A + ", data_path: rel"))["data"]["mountPath"] == "/fdl/data"


def test_one_interface_is_one_group_and_several_are_one_for_each_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(not_yet, "CLUSTER", ())
    same = made(workers(A + ", nccl_socket_ifname: eth0"))
    assert same.objects[0]["spec"]["fabric"] == {"groups": [{"name": "all", "socketInterface": "eth0"}]}
    other = made(workers(A + ", nccl_socket_ifname: eth0", "host: B_1, local_devices: [0], nccl_socket_ifname: ib0"))
    assert other.objects[0]["spec"]["fabric"]["groups"][1] == {
        "name": "b-1",
        "nodeSelector": {"kubernetes.io/hostname": "B_1"},
        "socketInterface": "ib0",
    }
    assert not any("nccl_socket_ifname" in each for each in [*same.todo, *other.todo])


def test_hosts_without_an_interface_beside_others_are_named() -> None:
    result = made(workers(A + ", nccl_socket_ifname: eth0", "host: B_1, local_devices: [0]"))
    assert [each for each in result.todo if "nccl_socket_ifname" in each and each.startswith("interface of B_1:")]


def test_no_field_is_written_that_this_release_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(not_yet, "CLUSTER", (not_yet.NotYet("fabric", "has(self.fabric)", "leave it out"),))
    assert "fabric" not in made(workers(A + ", nccl_socket_ifname: eth0")).objects[0]["spec"]


def test_too_many_kinds_of_hosts_are_too_many_cohorts() -> None:
    entries = [f"host: h{n}, local_devices: [0], env: {{N: '{n}'}}" for n in range(17)]
    with pytest.raises(ConvertError, match=r"17 kinds .* at most 16 cohorts"):
        made(workers(*entries))


def test_what_the_models_refuse_is_told_with_the_field() -> None:
    with pytest.raises(ConvertError, match=r"cannot be FdlRun train: spec.trainer.args: .* at most 256"):
        made(workers(A, more=f"publish: {{args: {['x'] * 300}}}\n"))


def test_files_without_a_cluster_are_refused() -> None:
    with pytest.raises(ConvertError, match="no block 'cluster'"):
        made("ddp: {anchor: 1}\n")


@given(st.lists(st.sampled_from(sorted(set(KEYS) - {"cluster", "commands"})), max_size=12, unique=True), st.randoms())
def test_conversion_is_deterministic_valid_and_accounts_for_every_key(paths: list[str], rng: Any) -> None:
    """Whatever mixture of keys a file has."""
    tree: dict[str, Any] = {"cluster": {}, "commands": {"train": {"cluster": True}}}
    for path in paths:
        key = KEYS[path]
        tree = with_key(key, SPECIAL.get(path.rpartition(".")[2], SAMPLES[key.kind]), tree)
    text = yaml.safe_dump(tree, sort_keys=False)
    first, second = audit(parse(text, "f.yml")), audit(parse(text, "f.yml"))
    assert first == second
    assert sorted(place.place for place in first.findings) == sorted(_leaves(parse(text, "f.yml")))
    results = [build(each.tree, Wishes()) for each in (first, second)]
    texts = [show.manifests(each, ["f.yml"]) for each in results]
    assert texts[0] == texts[1]
    cluster, *runs = yaml.safe_load_all(texts[0])
    assert [cluster, *runs] == results[0].objects
    FdlCluster.model_validate(cluster)
    for each in runs:
        spec = FdlRun.model_validate(each).spec
        assert spec.join.min_members <= sum(part.ceiling for part in spec.cohorts)
        assert spec.join.cap_seconds >= spec.join.window_seconds


def _leaves(value: Any, path: str = "") -> list[str]:
    """Places of all keys but those that only hold others."""
    found: list[str] = []
    for key, item in value.items():
        name = f"{path}.{key}".lstrip(".").replace("commands.train", "commands.*")
        block = name in KEYS and KEYS[name].kind in ("map", "ssh")
        if not block and name != "commands.*":
            found.append(value.places[key])
        if isinstance(item, dict) and (block or name == "commands.*"):
            found += _leaves(item, name)
        if name in KEYS and KEYS[name].kind == "maps":
            found += [place for entry in item for place in _leaves(entry, f"{name}[]")]
    return found


def test_wishes_name_the_images() -> None:
    result = made(workers(A), registry="r.example/team", tag="7", name="mine")
    assert result.objects[0]["spec"]["variants"][0]["image"] == "r.example/team/trainer-cu128:7"
    assert result.objects[1]["metadata"]["name"] == "mine"
    assert dataclasses.asdict(Wishes())["registry"] == "fdl.local"
