"""What a person does with a run: suspend and resume, edit, scale, delete; and what the API server refuses a run."""

from collections.abc import Callable
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from fdl_api import labels
from fdl_cli.local import Cluster
from tests.e2e.support import build, evidence
from tests.e2e.support.kube import Kube, condition, phase_of, training, until

EPOCHS = 40


def test_suspend_and_resume_from_the_checkpoint(kube: Kube, cluster: Cluster, namespace: str) -> None:
    """Suspending saves and frees the nodes; resuming is attempt 2 and goes on where the checkpoint was."""
    kube.create(namespace, build.digits("rest", members=2, epochs=EPOCHS))
    kube.wait_window(namespace, "rest", 5, seconds=180)
    kube.patch(namespace, "rest", {"spec": {"runPolicy": {"suspend": True}}})
    run = kube.wait_phase(namespace, "rest", "Suspended", seconds=120)
    assert condition(run, "Suspended")["status"] == "True"
    until("no member is left", lambda: not kube.pods(namespace, "rest"), 60)
    saved = training(kube.run(namespace, "rest"))["checkpoint"]
    assert saved["verified"]
    assert saved["lastDurableStep"] >= 5
    kube.patch(namespace, "rest", {"spec": {"runPolicy": {"suspend": False}}})

    def trains_again(run: dict[str, Any]) -> bool:
        return training(run).get("attempt") == 2 and bool(training(run).get("ranks"))

    run = kube.wait(namespace, "rest", "attempt 2 trains", trains_again, 180)
    assert training(run)["window"] > saved["lastDurableStep"]
    run = kube.wait_phase(namespace, "rest", "Succeeded", seconds=240)
    assert run["status"]["attempt"] == 2
    evidence.accounting(cluster, run, EPOCHS)


def test_a_finished_run_stays_finished(kube: Kube, cluster: Cluster, namespace: str) -> None:
    """Its children are deleted by hand: nothing is created again (case K8), and a change of the run changes nothing."""
    kube.create(namespace, build.digits("done", members=1, epochs=2))
    kube.wait_phase(namespace, "done", "Succeeded", seconds=180)
    selector = f"{labels.RUN}=done"
    kube.core.delete_collection_namespaced_pod(namespace, label_selector=selector, grace_period_seconds=0)
    kube.core.delete_collection_namespaced_secret(namespace, label_selector=selector)
    kube.core.delete_collection_namespaced_config_map(namespace, label_selector=selector)
    # A run that the operator handles after this one proves that it has seen the deletions too.
    kube.patch(namespace, "done", {"metadata": {"annotations": {"touched": "yes"}}})
    kube.create(namespace, build.digits("after", members=1, epochs=2))
    kube.wait_phase(namespace, "after", "Succeeded", seconds=180)
    assert phase_of(kube.run(namespace, "done")) == "Succeeded"
    assert kube.core.list_namespaced_pod(namespace, label_selector=selector).items == []
    assert kube.core.list_namespaced_secret(namespace, label_selector=selector).items == []


def test_a_spec_edited_mid_run_is_refused_and_a_checkpoint_is_made_on_request(
    kube: Kube, cluster: Cluster, namespace: str
) -> None:
    """The sentence names the field, and training does not notice; the annotation asks for a checkpoint."""
    rarely = {"claim": build.CLAIM, "intervalSeconds": 3600}
    kube.create(namespace, build.digits("edited", members=2, epochs=60, checkpoint=rarely))

    def saved_after(window: int) -> Callable[[dict[str, Any]], bool]:
        def saved(run: dict[str, Any]) -> bool:
            found = training(run).get("checkpoint") or {}
            return bool(found.get("verified")) and not found["final"] and found["lastDurableStep"] > window

        return saved

    run = kube.wait(namespace, "edited", "the first checkpoint is durable", saved_after(0), 180)
    first = training(run)["checkpoint"]["lastDurableStep"]
    kube.patch(namespace, "edited", {"metadata": {"annotations": {labels.SAVE_NOW: "please"}}})
    kube.wait(namespace, "edited", "one on request is durable", saved_after(first), 60)
    with pytest.raises(ApiException) as refused:
        kube.patch(namespace, "edited", {"spec": {"mode": "cpu-sync"}})
    assert refused.value.status == 422
    assert "spec.mode" in refused.value.body
    assert "undo the edit, or apply it as a new FdlRun" in refused.value.body
    run = kube.wait_phase(namespace, "edited", "Succeeded", seconds=180)
    assert run["spec"]["mode"] == "cpu-cadence"
    assert run["status"]["attempt"] == 1
    evidence.accounting(cluster, run, 60)


def test_scaling_up_and_down_restarts_nobody(kube: Kube, cluster: Cluster, namespace: str) -> None:
    """spec.replicas: members join and leave at window boundaries."""
    cohort = {**build.cpu_cohort("wide", 2), "minReplicas": 1, "maxReplicas": 3}
    kube.create(namespace, build.digits("wide", epochs=250, cohorts=[cohort]))
    kube.wait_window(namespace, "wide", 3, seconds=180)
    first = {pod.metadata.uid for pod in kube.live_pods(namespace, "wide")}

    def ranks(count: int) -> Any:
        return lambda run: len(training(run).get("ranks", [])) == count

    kube.patch(namespace, "wide", {"spec": {"replicas": 3}})
    kube.wait(namespace, "wide", "three ranks share the work", ranks(3), 120)
    kube.patch(namespace, "wide", {"spec": {"replicas": 2}})
    kube.wait(namespace, "wide", "two ranks share the work", ranks(2), 120)
    assert first <= {pod.metadata.uid for pod in kube.live_pods(namespace, "wide")}
    run = kube.wait_phase(namespace, "wide", "Succeeded", seconds=240)
    evidence.accounting(cluster, run, 250)
    assert run["status"]["counters"] == {"app": 0, "infrastructure": 0, "preemption": 0, "coordinator": 0}


def test_a_child_that_is_refused_is_a_condition_and_is_made_once_it_may(kube: Kube, namespace: str) -> None:
    """A quota: the API server's own sentence is in the condition, which clears when the quota is raised (case K7)."""
    quota = {"metadata": {"name": "tight"}, "spec": {"hard": {"pods": "1"}}}
    kube.core.create_namespaced_resource_quota(namespace, quota)
    kube.create(namespace, build.digits("quota", members=2, epochs=2))

    def refused(run: dict[str, Any]) -> bool:
        found = condition(run, "Progressing")
        return found.get("reason") == "ChildCreateFailed" and "exceeded quota" in found.get("message", "")

    run = kube.wait(namespace, "quota", "ChildCreateFailed names the quota", refused, 60)
    assert condition(run, "Progressing")["status"] == "False"
    kube.core.patch_namespaced_resource_quota("tight", namespace, {"spec": {"hard": {"pods": "10"}}})
    run = kube.wait_phase(namespace, "quota", "Succeeded", seconds=180)
    assert condition(run, "Progressing")["reason"] != "ChildCreateFailed"


def test_a_run_is_deleted_in_every_phase(kube: Kube, namespace: str) -> None:
    """No finalizer and no retry keeps a run (case O3): gone within seconds, whatever it was doing."""
    kube.create(namespace, build.digits("early", members=2, epochs=50))
    kube.delete(namespace, "early")
    kube.create(namespace, build.digits("starting", members=2, epochs=50))
    kube.wait(namespace, "starting", "its pods exist", lambda _: bool(kube.pods(namespace, "starting")), 60)
    kube.delete(namespace, "starting")
    until("both runs are gone", lambda: kube.run_names(namespace) == [], 10)

    def ending() -> bool:
        return all(pod.metadata.deletion_timestamp for pod in kube.core.list_namespaced_pod(namespace).items)

    until("their pods are told to end", ending, 30)
