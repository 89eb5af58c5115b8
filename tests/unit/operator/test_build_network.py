"""What a placement, and FdlCluster's defaults, add to pods: network interface, bridged NCCL, tolerations, secrets."""

from typing import Any, ClassVar

from fdl_api.cluster import NcclBridge, RunDefaults
from fdl_api.placement import Placement
from fdl_operator.build import pods
from fdl_operator.model import CreateCoordinator, CreateMember
from fdl_operator.settings import Settings

from .builders import World

SETTINGS = Settings(operator_image="reg/operator:1", image_pull_secrets=("pull",))
BRIDGE = NcclBridge.model_validate({"image": "reg/nccl:1", "version": "2.28.3"})
PLAIN = Placement("cuda", "reg/cuda:1")
NAMED = Placement("cuda", "reg/cuda:1", interface="ib0")
BRIDGED = Placement("cuda12", "reg/cuda12:1", nccl="2.28", bridge=BRIDGE)
PRELOADED = "/fdl/nccl/libnccl.so.2"
SCRIPT = {"source": {"image": {"path": "/app/train.py"}}}


def member(placement: Placement, defaults: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    run = World(**{"cohorts": [{"name": "g", "vendor": "nvidia"}]} | changes).run
    assert run.spec is not None
    action = CreateMember("run-g-1-3", "g", 1, 3, 2, placement)
    return pods.member(run, run.spec, action, SETTINGS, RunDefaults.model_validate(defaults or {}))


def coordinator(defaults: dict[str, Any], **changes: Any) -> dict[str, Any]:
    run = World(**changes).run
    assert run.spec is not None
    action = CreateCoordinator("run-coordinator-2", 2, 4)
    return pods.coordinator(run, run.spec, action, SETTINGS, RunDefaults.model_validate(defaults))


def env(pod: dict[str, Any]) -> dict[str, str]:
    entries = pod["spec"]["containers"][0]["env"]
    assert len({entry["name"] for entry in entries}) == len(entries), "a variable is there twice"
    return {entry["name"]: entry.get("value", "") for entry in entries}


class TestInterface:
    def test_it_is_told_to_nccl_exactly_and_to_gloo(self) -> None:
        found = env(member(NAMED))
        assert (found["NCCL_SOCKET_IFNAME"], found["GLOO_SOCKET_IFNAME"]) == ("=ib0", "ib0")

    def test_without_one_nothing_is_said(self) -> None:
        assert not {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"} & set(env(member(PLAIN)))

    def test_what_the_run_names_stays(self) -> None:
        found = env(member(NAMED, trainer=SCRIPT | {"env": [{"name": "NCCL_SOCKET_IFNAME", "value": "net1"}]}))
        assert (found["NCCL_SOCKET_IFNAME"], found["GLOO_SOCKET_IFNAME"]) == ("net1", "ib0")


class TestBridge:
    def test_an_init_container_copies_the_library_and_the_trainer_preloads_it(self) -> None:
        spec = member(BRIDGED)["spec"]
        (init,) = spec["initContainers"]
        assert init["image"] == "reg/nccl:1"
        assert init["command"] == ["cp", "-L", "/opt/nccl/libnccl.so.2", "/fdl/nccl/"]
        assert env({"spec": spec})["LD_PRELOAD"] == PRELOADED
        read_only = {mount["name"]: mount["readOnly"] for mount in spec["containers"][0]["volumeMounts"]}
        assert read_only["fdl-nccl"] and "readOnly" not in init["volumeMounts"][0]
        assert {"name": "fdl-nccl", "emptyDir": {}} in spec["volumes"]

    def test_it_obeys_pod_security_restricted(self) -> None:
        security = member(BRIDGED)["spec"]["initContainers"][0]["securityContext"]
        assert security == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}

    def test_others_have_none_of_it(self) -> None:
        spec = member(PLAIN)["spec"]
        assert "initContainers" not in spec and "LD_PRELOAD" not in env({"spec": spec})
        assert all(volume["name"] != "fdl-nccl" for volume in spec["volumes"])

    def test_rccl_keeps_its_name(self) -> None:
        rccl = BRIDGE.model_copy(update={"path": "/opt/rocm/lib/librccl.so.1"})
        assert env(member(Placement("rocm", "i", bridge=rccl)))["LD_PRELOAD"] == "/fdl/nccl/librccl.so.1"

    def test_what_the_user_preloads_comes_after_it(self) -> None:
        own = [{"name": "LD_PRELOAD", "value": "/x/libjemalloc.so"}]
        joined = f"{PRELOADED}:/x/libjemalloc.so"
        assert env(member(BRIDGED, trainer=SCRIPT | {"env": own}))["LD_PRELOAD"] == joined
        template = {"spec": {"containers": [{"name": "trainer", "env": own}]}}
        cohorts = [{"name": "g", "vendor": "nvidia", "podTemplate": template}]
        assert env(member(BRIDGED, cohorts=cohorts))["LD_PRELOAD"] == joined
        assert env(member(PLAIN, cohorts=cohorts))["LD_PRELOAD"] == "/x/libjemalloc.so"

    def test_a_template_cannot_take_it_away(self) -> None:
        gone = {"spec": {"containers": [{"name": "trainer", "env": None}]}}
        cohorts = [{"name": "g", "vendor": "nvidia", "podTemplate": gone}]
        assert env(member(BRIDGED, cohorts=cohorts))["LD_PRELOAD"] == PRELOADED
        elsewhere = [{"name": "LD_PRELOAD", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]
        cohorts = [
            {
                "name": "g",
                "vendor": "nvidia",
                "podTemplate": {"spec": {"containers": [{"name": "trainer", "env": elsewhere}]}},
            }
        ]
        assert env(member(BRIDGED, cohorts=cohorts))["LD_PRELOAD"] == PRELOADED


class TestDefaults:
    DEFAULTS: ClassVar = {
        "tolerations": [
            {"key": "team", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "spot", "operator": "Exists"},
        ],
        "imagePullSecrets": ["pull", "shared"],
        "priorityClassName": "low",
    }

    def test_they_are_added_to_members(self) -> None:
        spec = member(PLAIN, self.DEFAULTS)["spec"]
        assert [entry["key"] for entry in spec["tolerations"]] == ["nvidia.com/gpu", "team", "spot"]
        assert spec["imagePullSecrets"] == [{"name": "pull"}, {"name": "shared"}]
        assert spec["priorityClassName"] == "low"

    def test_the_runs_own_win(self) -> None:
        own = {"key": "team", "operator": "Equal", "value": "x", "effect": "NoSchedule"}
        spec = member(
            PLAIN,
            self.DEFAULTS,
            cohorts=[{"name": "g", "vendor": "cpu", "tolerations": [own]}],
            scheduling={"priorityClassName": "high"},
        )["spec"]
        assert spec["priorityClassName"] == "high"
        assert spec["tolerations"] == [own, {"key": "spot", "operator": "Exists"}]

    def test_the_coordinator_gets_secrets_and_priority_but_no_toleration(self) -> None:
        spec = coordinator(self.DEFAULTS)["spec"]
        assert spec["imagePullSecrets"] == [{"name": "pull"}, {"name": "shared"}]
        assert spec["priorityClassName"] == "low" and "tolerations" not in spec
