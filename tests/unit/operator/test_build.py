"""Objects of a run as the builders make them."""

import datetime
import json
import ssl
import subprocess
import sys
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.verification import PolicyBuilder, Store

from fdl_api import names
from fdl_api.placement import Placement
from fdl_api.runconfig import MemberEnv, RunConfig
from fdl_operator.build import objects, pki, pods
from fdl_operator.build.events import event
from fdl_operator.build.overlay import merge_pod
from fdl_operator.build.runconfig import run_config
from fdl_operator.model import OFF_DEVICES, CreateCoordinator, CreateMember, EventNote
from fdl_operator.settings import Settings

from .builders import T0, UID, World

SETTINGS = Settings(operator_image="reg/operator:1", image_pull_secrets=("pull",))
PLACEMENT = Placement("cuda", "reg/cuda:1", (("fdl.dev/vendor.nvidia", ("true",)),), ("old-node",))


def member(placement: Placement = PLACEMENT, **changes: Any) -> dict[str, Any]:
    run = World(**changes).run
    assert run.spec is not None
    cohort = run.spec.cohorts[0].name
    action = CreateMember(f"run-{cohort}-1-3", cohort, 1, 3, 2, placement)
    return pods.member(run, run.spec, action, SETTINGS)


def coordinator(*, off_devices: bool = False, **changes: Any) -> dict[str, Any]:
    run = World(**changes).run
    assert run.spec is not None
    action = CreateCoordinator("run-coordinator-2", 2, 4, off_devices)
    return pods.coordinator(run, run.spec, action, SETTINGS)


DEVICE_LABELS = {("fdl.dev/vendor.nvidia", "DoesNotExist"), ("fdl.dev/vendor.amd", "DoesNotExist")}


def keys(term: dict[str, Any]) -> set[tuple[str, str]]:
    return {(entry["key"], entry["operator"]) for entry in term["matchExpressions"]}


def env(pod: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in pod["spec"]["containers"][0]["env"]}


def mounts(pod: dict[str, Any]) -> dict[str, str]:
    return {entry["mountPath"]: entry["name"] for entry in pod["spec"]["containers"][0]["volumeMounts"]}


class TestMember:
    def test_it_is_bare_and_told_apart_by_labels(self) -> None:
        pod = member()
        tags = pod["metadata"]["labels"]
        assert pod["spec"]["restartPolicy"] == "Never"
        assert tags["fdl.dev/run-uid"] == UID and tags["fdl.dev/incarnation"] == "3" and tags["fdl.dev/attempt"] == "2"
        assert pod["metadata"]["ownerReferences"] == [
            {"apiVersion": "fdl.dev/v1alpha1", "kind": "FdlRun", "name": "run", "uid": UID, "controller": True}
        ]

    def test_it_has_no_right_and_no_service_variables(self) -> None:
        spec = member()["spec"]
        assert spec["automountServiceAccountToken"] is False and spec["enableServiceLinks"] is False

    def test_it_obeys_pod_security_restricted(self) -> None:
        for spec in (member()["spec"], coordinator()["spec"]):
            assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] == 65532
            assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            container = spec["containers"][0]["securityContext"]
            assert container["allowPrivilegeEscalation"] is False and container["capabilities"] == {"drop": ["ALL"]}

    def test_it_sees_token_and_ca_but_not_the_coordinators_key(self) -> None:
        volume = next(each for each in member()["spec"]["volumes"] if each["name"] == "secret")
        assert [item["path"] for item in volume["secret"]["items"]] == ["token", "ca.crt"]

    def test_it_is_not_told_to_end_before_it_can_hear_it(self) -> None:
        """The hook, run as in the container: by the same shell, on a process that blocks SIGTERM after a moment."""
        hook = member()["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        script = "import signal, sys; sys.stdin.readline(); signal.pthread_sigmask(signal.SIG_BLOCK, [15]); "
        script += "print(1, flush=True); sys.stdin.readline()"
        with subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as agent:
            assert agent.stdin is not None and agent.stdout is not None
            text = hook[-1].replace("/proc/1/", f"/proc/{agent.pid}/")
            with subprocess.Popen([*hook[:-1], text]) as waiting:
                with pytest.raises(subprocess.TimeoutExpired):
                    waiting.wait(0.5)
                agent.stdin.write("block\n")
                agent.stdin.flush()
                assert agent.stdout.readline() == "1\n"
                assert waiting.wait(20) == 0
            agent.stdin.close()

    def test_its_environment_says_who_it_is(self) -> None:
        found = env(member())
        assert found[MemberEnv.MEMBER] == "run-a-1-3" and found[MemberEnv.ORDINAL] == "1"
        assert found[MemberEnv.MEMBER_UID] == {"fieldRef": {"fieldPath": "metadata.uid"}}
        assert found[MemberEnv.POD_IP] == {"fieldRef": {"fieldPath": "status.podIP"}}
        assert found[MemberEnv.CPU_LIMIT]["resourceFieldRef"]["divisor"] == "1m"
        assert found[MemberEnv.GRACE_SECONDS] == "60"

    def test_the_users_variables_follow(self) -> None:
        trainer = {"source": {"image": {"path": "/a.py"}}, "env": [{"name": "LR", "value": "0.1"}]}
        assert env(member(trainer=trainer))["LR"] == "0.1"

    def test_mounts(self) -> None:
        trainer = {"source": {"configMap": {"name": "script"}}}
        pod = member(trainer=trainer, data={"claim": "d", "mountPath": "/data"})
        assert mounts(pod) == {
            "/etc/fdl/run": "run", "/etc/fdl/secret": "secret", "/dev/shm": "shm", "/tmp": "tmp",
            "/fdl/checkpoints": "checkpoints", "/data": "data", "/fdl/script": "script",
        }  # fmt: skip
        script = next(each for each in pod["spec"]["volumes"] if each["name"] == "script")
        assert script["configMap"]["optional"], "a missing script is the agent's to report, not a pod that hangs"
        shm = next(each for each in pod["spec"]["volumes"] if each["name"] == "shm")
        assert shm["emptyDir"] == {"medium": "Memory"}

    def test_without_claims_there_is_nothing_to_mount(self) -> None:
        assert "/fdl/checkpoints" not in mounts(member(checkpoint=None))

    @pytest.mark.parametrize(
        ("vendor", "more", "resource"),
        [
            ("nvidia", {}, "nvidia.com/gpu"),
            ("amd", {}, "amd.com/gpu"),
            ("nvidia", {"deviceResource": "nvidia.com/mig-1g.10gb"}, "nvidia.com/mig-1g.10gb"),
        ],
    )
    def test_devices_are_requested_by_vendor(self, vendor: str, more: dict[str, Any], resource: str) -> None:
        pod = member(cohorts=[{"name": "g", "vendor": vendor, "devicesPerReplica": 2, **more}])
        resources = pod["spec"]["containers"][0]["resources"]
        assert resources["limits"][resource] == resources["requests"][resource] == "2"
        assert {"key": resource, "operator": "Exists", "effect": "NoSchedule"} in pod["spec"]["tolerations"]

    def test_a_cpu_member_asks_for_no_device(self) -> None:
        trainer = {"source": {"image": {"path": "/a.py"}}, "resources": {"limits": {"cpu": "2", "memory": "1Gi"}}}
        assert member(trainer=trainer)["spec"]["containers"][0]["resources"] == {
            "limits": {"cpu": "2", "memory": "1Gi"}
        }

    def test_a_cohorts_resources_go_before_the_runs(self) -> None:
        cohort = {"name": "a", "vendor": "cpu", "resources": {"requests": {"cpu": "1"}}}
        assert member(cohorts=[cohort])["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "1"}}

    def test_the_placement_is_pinned_by_affinity(self) -> None:
        node = member()["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        (term,) = node["nodeSelectorTerms"]
        assert term["matchExpressions"] == [{"key": "fdl.dev/vendor.nvidia", "operator": "In", "values": ["true"]}]
        assert term["matchFields"] == [{"key": "metadata.name", "operator": "NotIn", "values": ["old-node"]}]

    def test_a_cpu_member_goes_to_a_node_with_devices_only_where_no_other_takes_it(self) -> None:
        cpu = member(Placement("cpu", "i"))["spec"]["affinity"]["nodeAffinity"]
        assert set(cpu) == {"preferredDuringSchedulingIgnoredDuringExecution"}
        assert keys(cpu["preferredDuringSchedulingIgnoredDuringExecution"][0]["preference"]) == DEVICE_LABELS
        gpu = member(cohorts=[{"name": "a", "vendor": "nvidia"}])["spec"]["affinity"]["nodeAffinity"]
        assert set(gpu) == {"requiredDuringSchedulingIgnoredDuringExecution"}


class TestCoordinator:
    def test_it_never_asks_for_a_device_and_prefers_nodes_without(self) -> None:
        spec = coordinator(cohorts=[{"name": "g", "vendor": "nvidia"}])["spec"]
        assert "nvidia.com/gpu" not in json.dumps(spec["containers"][0]["resources"])
        preferred = spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0]
        assert keys(preferred["preference"]) == DEVICE_LABELS

    def test_it_is_kept_off_devices_where_the_plan_says_so(self) -> None:
        pod = coordinator(off_devices=True)
        (term,) = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        assert keys(term) == DEVICE_LABELS
        assert pod["metadata"]["annotations"]["fdl.dev/placement"] == OFF_DEVICES

    def test_its_generation_is_its_incarnation(self) -> None:
        assert env(coordinator())[MemberEnv.GENERATION] == "2"

    def test_one_that_hangs_is_ended_but_not_one_that_is_slow(self) -> None:
        probe = coordinator()["spec"]["containers"][0]["livenessProbe"]
        assert probe["httpGet"]["path"] == "/healthz"
        assert 30 <= probe["periodSeconds"] * probe["failureThreshold"] <= 60

    def test_it_is_ready_when_it_answers(self) -> None:
        probe = coordinator()["spec"]["containers"][0]["readinessProbe"]["httpGet"]
        assert probe == {"path": "/healthz", "port": 7337, "scheme": "HTTPS"}

    def test_it_runs_from_the_operators_image(self) -> None:
        container = coordinator()["spec"]["containers"][0]
        assert (container["image"], container["command"]) == ("reg/operator:1", ["python", "-m", "fdl_coordinator"])


class TestOverlay:
    def merged(self, template: dict[str, Any]) -> dict[str, Any]:
        return member(cohorts=[{"name": "a", "vendor": "cpu", "podTemplate": template}])

    def test_the_trainer_is_merged_by_name_and_others_are_added(self) -> None:
        containers = [
            {"name": "trainer", "workingDir": "/w", "env": [{"name": "X", "value": "1"}]},
            {"name": "side", "image": "s"},
        ]
        pod = self.merged({"spec": {"containers": containers}})
        trainer, side = pod["spec"]["containers"]
        assert (
            trainer["workingDir"] == "/w"
            and trainer["image"] == "reg/cuda:1"
            and side == {"name": "side", "image": "s"}
        )
        assert env(pod)["X"] == "1" and env(pod)[MemberEnv.MEMBER] == "run-a-1-3"

    def test_our_own_variables_and_identity_stay(self) -> None:
        template = {
            "metadata": {"name": "evil", "labels": {"fdl.dev/run-uid": "x", "team": "t"}, "ownerReferences": []},
            "spec": {
                "restartPolicy": "Always",
                "containers": [{"name": "trainer", "env": [{"name": "FDL_MEMBER", "value": "evil"}]}],
            },
        }
        pod = self.merged(template)
        assert pod["metadata"]["name"] == "run-a-1-3" and pod["spec"]["restartPolicy"] == "Never"
        assert pod["metadata"]["labels"]["fdl.dev/run-uid"] == UID and pod["metadata"]["labels"]["team"] == "t"
        assert pod["metadata"]["ownerReferences"] and env(pod)["FDL_MEMBER"] == "run-a-1-3"
        assert [entry["name"] for entry in pod["spec"]["containers"][0]["env"]].count("FDL_MEMBER") == 1

    def test_required_affinity_is_joined_with_every_term(self) -> None:
        terms = [{"matchExpressions": [{"key": k, "operator": "Exists"}]} for k in ("x", "y")]
        template = {
            "spec": {
                "affinity": {
                    "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}},
                    "podAntiAffinity": {"a": 1},
                }
            }
        }
        affinity = self.merged(template)["spec"]["affinity"]
        joined = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        keys = [[entry["key"] for entry in term["matchExpressions"]] for term in joined]
        assert keys == [["x", "fdl.dev/vendor.nvidia"], ["y", "fdl.dev/vendor.nvidia"]]
        assert affinity["podAntiAffinity"] == {"a": 1}

    def test_tolerations_are_added_and_null_removes(self) -> None:
        pod = self.merged({"spec": {"tolerations": [{"key": "k"}], "imagePullSecrets": None}})
        assert pod["spec"]["tolerations"] == [{"key": "k"}] and "imagePullSecrets" not in pod["spec"]

    def test_a_longer_grace_period_is_told_to_the_agent(self) -> None:
        pod = self.merged({"spec": {"terminationGracePeriodSeconds": 300}})
        assert pod["spec"]["terminationGracePeriodSeconds"] == 300 and env(pod)[MemberEnv.GRACE_SECONDS] == "300"

    def test_nothing_of_the_base_is_shared_with_the_result(self) -> None:
        base = member()
        before = json.dumps(base)
        merge_pod(base, {"spec": {"containers": [{"name": "trainer", "image": "other"}]}})
        assert json.dumps(base) == before


class TestRunConfig:
    def config(self, **changes: Any) -> RunConfig:
        run = World(**changes).run
        assert run.spec is not None
        return run_config(run, run.spec, attempt=3, must_resume=True)

    def test_it_reads_back_as_coordinator_and_members_read_it(self) -> None:
        config = self.config(data={"audit": True, "sentinel": "ok"})
        run = World().run
        text = objects.config_map(run, config, "h")["data"]["run.json"]
        assert RunConfig.model_validate_json(text) == config
        assert (config.attempt, config.must_resume, config.audit) == (3, True, True)
        assert config.coordinator_host == "run-coordinator.ns.svc"

    def test_members_know_how_many_the_run_wants(self) -> None:
        """By the defaults of minReplicas and join.minMembers they could not tell."""
        cohorts = [{"name": "a", "vendor": "cpu", "replicas": 2}, {"name": "b", "vendor": "cpu", "maxReplicas": 9}]
        assert [cohort.replicas for cohort in self.config(cohorts=cohorts).cohorts] == [2, 1]
        assert [cohort.replicas for cohort in self.config(cohorts=cohorts, replicas=5).cohorts] == [2, 3]

    def test_a_run_has_its_own_checkpoint_directory(self) -> None:
        assert self.config().checkpoint_dir == "/fdl/checkpoints/run-0f0e0d0c"
        assert self.config(checkpoint=None).checkpoint_dir is None

    @pytest.mark.parametrize(
        ("source", "path"),
        [
            ({"image": {"path": "/app/train.py"}}, "/app/train.py"),
            ({"configMap": {"name": "c", "key": "t.py"}}, "/fdl/script/t.py"),
            ({"volume": {"claim": "c", "path": "x/t.py"}}, "/fdl/script/x/t.py"),
        ],
    )
    def test_where_the_script_lies(self, source: dict[str, Any], path: str) -> None:
        config = self.config(trainer={"source": source, "args": ["--lr", "1"]})
        assert (config.script.path, config.script.args) == (path, ["--lr", "1"])


class TestOthers:
    def test_the_service_selects_one_incarnation_of_the_coordinator(self) -> None:
        body = objects.service(World().run, 4, "h")
        assert body["spec"]["selector"] == {
            "fdl.dev/run-uid": UID, "fdl.dev/role": "coordinator", "fdl.dev/incarnation": "4"
        }  # fmt: skip
        assert body["spec"]["ports"][0]["port"] == names.COORDINATOR_PORT
        assert body["metadata"]["annotations"] == {"fdl.dev/spec-hash": "h"}

    def test_the_network_policy_admits_the_run_and_the_operator(self) -> None:
        run = World().run
        assert run.spec is not None
        policy = objects.network_policy(run, run.spec, "fdl-system", "h")["spec"]
        own, operator = policy["ingress"]
        assert policy["policyTypes"] == ["Ingress"] and own == {
            "from": [{"podSelector": {"matchLabels": {"fdl.dev/run-uid": UID}}}]
        }
        assert operator["ports"] == [{"port": 7337, "protocol": "TCP"}]
        assert operator["from"][0]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "fdl-system"}

    def test_strict_limits_egress_too(self) -> None:
        run = World(network={"policy": "strict"}).run
        assert run.spec is not None
        policy = objects.network_policy(run, run.spec, "fdl-system", "h")["spec"]
        assert policy["policyTypes"] == ["Ingress", "Egress"] and policy["egress"][1]["ports"][0]["port"] == 53


class TestKeys:
    NOW = datetime.datetime(2027, 1, 1, tzinfo=datetime.UTC)

    def test_the_certificate_is_good_for_the_coordinators_names_only(self) -> None:
        keys = pki.new_keys("run", "ns", self.NOW)
        ca = x509.load_pem_x509_certificate(keys.ca.encode())
        leaf = x509.load_pem_x509_certificate(keys.certificate.encode())

        def check(host: str) -> None:
            builder = PolicyBuilder().store(Store([ca])).time(self.NOW)
            builder.build_server_verifier(x509.DNSName(host)).verify(leaf, [])

        for host in ("run-coordinator.ns.svc", "run-coordinator.ns", "run-coordinator"):
            check(host)
        with pytest.raises(x509.verification.VerificationError):
            check("other-coordinator.ns.svc")

    def test_two_runs_share_nothing(self) -> None:
        one, two = pki.new_keys("run", "ns", self.NOW), pki.new_keys("run", "ns", self.NOW)
        assert one.token != two.token and len(bytes.fromhex(one.token)) == 32
        assert one.ca != two.ca and one.key != two.key

    def test_it_is_p256_and_openssl_loads_it(self, tmp_path: Any) -> None:
        keys = pki.new_keys("r" * 63, "n" * 63, self.NOW)
        (tmp_path / "crt").write_text(keys.certificate)
        (tmp_path / "key").write_text(keys.key)
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tmp_path / "crt", tmp_path / "key")
        public = x509.load_pem_x509_certificate(keys.certificate.encode()).public_key()
        assert isinstance(public, ec.EllipticCurvePublicKey) and public.curve.name == "secp256r1"


def test_an_event_keeps_to_what_the_api_server_takes() -> None:
    regarding = {"apiVersion": "fdl.dev/v1alpha1", "kind": "FdlRun", "name": "r" * 63, "uid": UID}
    body = event(EventNote("R" * 200, "m" * 2000, warning=True), regarding, "ns", "i" * 200, T0)
    assert body["metadata"] == {"generateName": f"{'r' * 40}-", "namespace": "ns"} and body["regarding"] is regarding
    assert (len(body["reason"]), len(body["note"]), len(body["reportingInstance"])) == (128, 1024, 128)
    assert (body["type"], body["eventTime"]) == ("Warning", "2027-01-15T08:00:00.000000Z")
    assert event(EventNote("R", "m"), regarding, "ns", "i", T0)["type"] == "Normal"
