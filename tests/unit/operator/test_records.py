"""Slim records from objects as the API server sends them."""

from typing import Any

import pytest

from fdl_api.nodes import node_record
from fdl_operator.model import PodPhase, PodRecord
from fdl_operator.records import cluster_record, owned_record, pod_record, run_record


def meta(**more: Any) -> dict[str, Any]:
    return {"name": "x", "namespace": "ns", "uid": "u", "resourceVersion": "7", **more}


def pod(**status: Any) -> dict[str, Any]:
    tags = {"fdl.dev/run": "run", "fdl.dev/run-uid": "r", "fdl.dev/role": "member", "fdl.dev/cohort": "a"}
    tags |= {"fdl.dev/ordinal": "3", "fdl.dev/incarnation": "2", "fdl.dev/attempt": "1"}
    return {
        "metadata": meta(labels=tags, annotations={"fdl.dev/placement": "p", "fdl.dev/variant": "cpu"}),
        "spec": {"nodeName": "n1"},
        "status": status,
    }


def test_who_a_pod_is() -> None:
    record = pod_record(pod(phase="Running", podIP="10.0.0.1", conditions=[{"type": "Ready", "status": "True"}]))
    assert (record.cohort, record.ordinal, record.incarnation, record.attempt) == ("a", 3, 2, 1)
    assert (record.ip, record.node, record.ready, record.placement, record.variant) == (
        "10.0.0.1",
        "n1",
        True,
        "p",
        "cpu",
    )


def test_the_image_is_the_main_containers() -> None:
    item = pod()
    item["spec"]["containers"] = [{"name": "side", "image": "s"}, {"name": "trainer", "image": "reg/t:1"}]
    assert (pod_record(item).image, pod_record(pod()).image) == ("reg/t:1", "")


def test_a_wish_for_a_checkpoint_is_an_annotation() -> None:
    item = {"metadata": meta(annotations={"fdl.dev/save-now": "x" * 99}), "spec": {}}
    assert (run_record(item).save_now, run_record({"metadata": meta(), "spec": {}}).save_now) == ("x" * 64, "")


def test_how_a_pod_ended() -> None:
    ended = {"exitCode": 64, "reason": "Error", "message": "{}", "finishedAt": "2026-01-01T00:00:00Z"}
    states = [
        {"name": "side", "state": {"terminated": {"exitCode": 9}}},
        {"name": "trainer", "state": {"terminated": ended}},
    ]
    record = pod_record(pod(phase="Failed", containerStatuses=states))
    assert record.ended and (record.exit_code, record.termination, record.finished_at) == (64, "{}", 1767225600.0)


def test_an_init_container_that_failed_is_the_end() -> None:
    init = [{"name": "fetch", "state": {"terminated": {"exitCode": 3}}}]
    main = [{"name": "trainer", "state": {"waiting": {"reason": "PodInitializing"}}}]
    record = pod_record(pod(phase="Failed", initContainerStatuses=init, containerStatuses=main))
    assert (record.exit_code, record.waiting_reason) == (3, "")


def test_an_init_container_in_trouble_is_named_with_its_image() -> None:
    containers = {"initContainers": [{"name": "fdl-nccl", "image": "reg/nccl:1"}]}
    containers["containers"] = [{"name": "trainer", "image": "reg/cuda:1"}]

    def record(**state: Any) -> PodRecord:
        states = [{"name": "fdl-nccl", "state": state}]
        waits = [{"name": "trainer", "state": {"waiting": {"reason": "PodInitializing"}}}]
        item = pod(initContainerStatuses=states, containerStatuses=waits)
        return pod_record(item | {"spec": item["spec"] | containers})

    stuck = record(waiting={"reason": "ErrImagePull", "message": "no such image"})
    assert (stuck.init_container, stuck.image, stuck.waiting_reason) == ("fdl-nccl", "reg/nccl:1", "ErrImagePull")
    failed = record(terminated={"exitCode": 1, "message": "cp: cannot stat"})
    assert (failed.init_container, failed.image, failed.exit_code) == ("fdl-nccl", "reg/nccl:1", 1)
    well = record(terminated={"exitCode": 0})
    assert (well.init_container, well.image, well.exit_code) == ("", "reg/cuda:1", None)


@pytest.mark.parametrize(("reason", "kept"), [("ImagePullBackOff", "ImagePullBackOff"), ("ContainerCreating", "")])
def test_waiting_is_noted_only_where_something_is_wrong(reason: str, kept: str) -> None:
    states = [{"name": "trainer", "state": {"waiting": {"reason": reason}}}]
    assert pod_record(pod(containerStatuses=states)).waiting_reason == kept


def test_disruption_and_scheduling_come_from_conditions() -> None:
    rows = [
        {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"},
        {
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        },
    ]  # fmt: skip
    record = pod_record(pod(phase="Pending", conditions=rows))
    assert record.disruption == "PreemptionByScheduler"
    assert (record.unschedulable, record.unschedulable_since) == ("0/3 nodes", 1767225600.0)


def test_since_when_a_pod_has_a_node_and_only_lacks_its_images_and_what_it_mounts() -> None:
    at = {"status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    rows = [{"type": "PodScheduled", **at}, {"type": "PodReadyToStartContainers", **at, "status": "False"}]
    volumes = [
        {"name": "a", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "b", "configMap": {"name": "script", "optional": True}},
        {"name": "c", "configMap": {"name": "settings"}},
        {"name": "d", "secret": {"secretName": "s3"}},
        {"name": "e", "emptyDir": {}},
    ]
    item = pod(phase="Pending", conditions=rows)
    item["spec"] = {"volumes": volumes}
    record = pod_record(item)
    assert (record.scheduled_at, record.sandbox_at) == (1767225600.0, None)
    assert record.mounts == ("ConfigMap settings", "Secret s3", "claim data")
    rows[1]["status"] = "True"
    assert pod_record(pod(phase="Pending", conditions=rows)).sandbox_at == 1767225600.0


def test_an_empty_pod_is_pending_and_an_unknown_phase_is_unknown() -> None:
    assert pod_record({"metadata": meta()}).phase is PodPhase.PENDING
    assert pod_record(pod(phase="Frozen")).phase is PodPhase.UNKNOWN


def test_a_node() -> None:
    report = '{"node": "x", "time": "2026-01-01T00:00:00Z"}'
    item = {
        "metadata": meta(labels={"a": "b"}, annotations={"fdl.dev/report": report}),
        "spec": {"unschedulable": True, "taints": [{"key": "k", "effect": "NoSchedule"}]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    record = node_record(item)
    assert record.ready and record.unschedulable and record.taints == (("k", "", "NoSchedule"),)
    assert record.report_at == 1767225600.0


def test_a_report_that_does_not_parse_has_no_age() -> None:
    item = {"metadata": meta(annotations={"fdl.dev/report": "no"})}
    assert node_record(item).report_at is None


def test_a_run_whose_spec_is_unreadable_keeps_its_status() -> None:
    item = {"metadata": meta(generation=2), "spec": {"mode": "x"}, "status": {"phase": "Running", "new": 1}}
    record = run_record(item)
    assert record.spec is None and "spec." in record.problem and record.status.phase == "Running"


def test_an_applied_objects_metadata() -> None:
    item = {"metadata": meta(labels={"fdl.dev/run-uid": "r"}, annotations={"fdl.dev/spec-hash": "h"})}
    record = owned_record(item, "Service")
    assert (record.kind, record.run_uid, record.spec_hash) == ("Service", "r", "h")


def test_an_unreadable_cluster_object_counts_as_empty() -> None:
    assert cluster_record({"metadata": meta(), "spec": {"variants": 3}}).spec.variants == ()
