"""The chart on a real cluster: its own test, upgrades, what it refuses, and what its removal leaves."""

import json
from typing import Any

import pytest
import yaml

from fdl_cli.demo import setup
from fdl_cli.demo.kube import DemoError, Tools
from tests.e2e import conftest
from tests.e2e.support import build, fleet
from tests.e2e.support.kube import Kube, until

CHART = str(setup.checkout() / "charts" / "fdl")


def rendered(tools: Tools, *arguments: str) -> list[dict[str, Any]]:
    """All objects of the chart."""
    text = tools.call(tools.helm, "template", "fdl", CHART, "--namespace", setup.SYSTEM, *arguments)
    return [item for item in yaml.safe_load_all(text) if item]


def test_helm_lint_and_helm_test_pass(tools: Tools) -> None:
    """`helm test` asks the API server only."""
    tools.call(tools.helm, "lint", "--strict", CHART)
    tools.call(tools.helm, "test", setup.RELEASE, "--namespace", setup.SYSTEM, "--timeout", "120s")


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("operator.replcas=1", "replcas"),
        ("prober.tolerationz[0].key=x", "tolerationz"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("oprator.replicas=1", "oprator"),
    ],
)
def test_a_misspelt_value_is_refused_by_name(tools: Tools, setting: str, named: str) -> None:
    """The install fails and names the key; nothing is ignored."""
    with pytest.raises(DemoError, match=named):
        rendered(tools, "--set", setting)


def test_values_reach_the_pods(tools: Tools) -> None:
    """Pull secrets, tolerations, resources and runtimeClass are values."""
    objects = rendered(
        tools,
        *("--set", "imagePullSecrets[0].name=reg,prober.runtimeClassName=nvidia"),
        *("--set", "operator.tolerations[0].key=infra,operator.tolerations[0].operator=Exists"),
        *("--set", "operator.resources.limits.memory=1Gi,image.registry=example.org/x,image.tag=v7"),
    )
    operator = next(o for o in objects if o["kind"] == "Deployment")["spec"]["template"]["spec"]
    probers = {o["metadata"]["name"]: o["spec"]["template"]["spec"] for o in objects if o["kind"] == "DaemonSet"}
    prober = probers["fdl-prober-gpu"]
    assert operator["imagePullSecrets"] == prober["imagePullSecrets"] == [{"name": "reg"}]
    lost = {entry["key"]: entry["tolerationSeconds"] for entry in operator["tolerations"][:2]}
    assert lost == {"node.kubernetes.io/not-ready": 15, "node.kubernetes.io/unreachable": 15}
    assert operator["tolerations"][2:] == [{"key": "infra", "operator": "Exists"}]
    assert operator["containers"][0]["resources"]["limits"]["memory"] == "1Gi"
    assert operator["containers"][0]["image"] == "example.org/x/operator:v7"
    environment = {entry["name"]: entry.get("value") for entry in operator["containers"][0]["env"]}
    assert json.loads(environment["FDL_VARIANTS"] or "")[0]["image"] == "example.org/x/trainer-cpu:v7"
    assert environment["FDL_IMAGE_PULL_SECRETS"] == "reg"
    assert prober["runtimeClassName"] == "nvidia"
    assert "runtimeClassName" not in probers["fdl-prober"]


def test_a_claim_that_probers_mount_twice_is_read_only_at_one_mount_only(tools: Tools) -> None:
    """Said in the volume, it would hold for both: the kubelet mounts a pod's claim once."""
    for prober in (o for o in rendered(tools, "--set", ",".join(fleet.VALUES)) if o["kind"] == "DaemonSet"):
        pod = prober["spec"]["template"]["spec"]
        assert [v["persistentVolumeClaim"] for v in pod["volumes"] if "persistentVolumeClaim" in v] == [
            {"claimName": fleet.PROBED},
            {"claimName": fleet.PROBED},
        ]
        mounts = {mount["name"]: mount.get("readOnly") for mount in pod["containers"][0]["volumeMounts"]}
        assert (mounts["sentinel"], mounts["volume-0"]) == (True, False)


def test_the_operators_pod_fits_pod_security_restricted(kube: Kube, tools: Tools, namespace: str) -> None:
    """The server admits it into a namespace that enforces "restricted" (dry run)."""
    template = next(o for o in rendered(tools) if o["kind"] == "Deployment")["spec"]["template"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "o", **template["metadata"]},
        "spec": template["spec"],
    }
    pod["spec"].pop("serviceAccountName")
    kube.core.create_namespaced_pod(namespace, pod, dry_run="All")


def test_the_operator_may_not_read_other_peoples_secrets_in_bulk(kube: Kube, tools: Tools) -> None:
    """Least privilege, asked of the server."""

    def may(verb: str, what: str) -> bool:
        account = f"system:serviceaccount:{setup.SYSTEM}:fdl-operator"
        resource, _, part = what.partition("/")
        scope = ("--as", account, "--all-namespaces", f"--subresource={part}")
        try:
            answer = tools.call(tools.kubectl, "auth", "can-i", verb, resource, *scope)
        except DemoError as error:
            answer = str(error)
        return answer.strip().startswith("yes")

    assert may("create", "pods")
    for verb, what in (
        ("list", "secrets"),
        ("watch", "secrets"),
        ("create", "pods/exec"),
        ("update", "nodes"),
        ("patch", "nodes"),
        ("create", "clusterroles.rbac.authorization.k8s.io"),
    ):
        assert not may(verb, what), f"the operator may {verb} {what}"


def test_uninstalling_keeps_the_crds_and_the_runs(kube: Kube, tools: Tools, namespace: str) -> None:
    """Runs survive the chart, and the next install finds them."""
    kube.create(namespace, build.digits("kept", cohorts=[{"name": "gpu", "vendor": "nvidia"}]))
    tools.call(tools.helm, "uninstall", setup.RELEASE, "--namespace", setup.SYSTEM, "--wait", "--timeout", "120s")
    try:
        assert kube.run_names(namespace) == ["kept"]
    finally:
        conftest.install(tools)
    until("the new operator sees the run", lambda: "status" in kube.run(namespace, "kept"), 60)


def test_the_rendered_objects_are_the_same_each_time(tools: Tools) -> None:
    """No random name and no time in the chart, so that an upgrade without a change changes nothing."""
    assert rendered(tools) == rendered(tools)
