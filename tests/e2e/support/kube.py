"""What the end-to-end tests ask of the API server, and waits that explain themselves when they end in vain."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from fdl_api import labels, names

RUNS = ("fdl.dev", "v1alpha1", "fdlruns")
Run = dict[str, Any]


class Kube:
    """One cluster, seen as its administrator."""

    def __init__(self, kubeconfig: Path) -> None:
        connect: Callable[[str], Any] = config.new_client_from_config
        self.api = connect(str(kubeconfig))
        self.core = client.CoreV1Api(self.api)
        self.apps = client.AppsV1Api(self.api)
        self.custom = client.CustomObjectsApi(self.api)
        self.policy = client.PolicyV1Api(self.api)
        self.network = client.NetworkingV1Api(self.api)

    # -- runs --------------------------------------------------------------------------------------------

    def create(self, namespace: str, run: Run) -> Run:
        """POST an FdlRun."""
        group, version, plural = RUNS
        return self.custom.create_namespaced_custom_object(group, version, namespace, plural, run)  # type: ignore[no-any-return]

    def run(self, namespace: str, name: str) -> Run:
        """The FdlRun now."""
        group, version, plural = RUNS
        return self.custom.get_namespaced_custom_object(group, version, namespace, plural, name)  # type: ignore[no-any-return]

    def patch(self, namespace: str, name: str, patch: dict[str, Any]) -> Run:
        """JSON merge patch of an FdlRun."""
        group, version, plural = RUNS
        return self.custom.patch_namespaced_custom_object(  # type: ignore[no-any-return]
            group, version, namespace, plural, name, patch, _content_type="application/merge-patch+json"
        )

    def delete(self, namespace: str, name: str) -> None:
        """Delete an FdlRun."""
        group, version, plural = RUNS
        self.custom.delete_namespaced_custom_object(group, version, namespace, plural, name)

    def run_names(self, namespace: str) -> list[str]:
        """Names of all FdlRuns of a namespace."""
        group, version, plural = RUNS
        found = self.custom.list_namespaced_custom_object(group, version, namespace, plural)
        return [item["metadata"]["name"] for item in found["items"]]

    def delete_all(self, namespace: str) -> None:
        """Delete all FdlRuns of a namespace, and at once the pods that they leave."""
        group, version, plural = RUNS
        self.custom.delete_collection_namespaced_custom_object(group, version, namespace, plural)
        self.core.delete_collection_namespaced_pod(namespace, grace_period_seconds=0)

    # -- pods --------------------------------------------------------------------------------------------

    def pods(self, namespace: str, run: str, role: str = labels.ROLE_MEMBER) -> list[Any]:
        """Pods of a run, oldest first."""
        selector = f"{labels.RUN}={run},{labels.ROLE}={role}"
        found = self.core.list_namespaced_pod(namespace, label_selector=selector).items
        return sorted(found, key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name))

    def live_pods(self, namespace: str, run: str, role: str = labels.ROLE_MEMBER) -> list[Any]:
        """Those that run and are not on their way out."""
        return [
            pod
            for pod in self.pods(namespace, run, role)
            if pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None
        ]

    def pod(self, namespace: str, name: str) -> Any | None:
        """One pod, or None."""
        try:
            return self.core.read_namespaced_pod(name, namespace)
        except ApiException as error:
            if error.status == 404:
                return None
            raise

    def delete_pod(self, namespace: str, name: str, grace: int | None = None) -> None:
        """Delete a pod; with ``grace=0`` without waiting for it."""
        self.core.delete_namespaced_pod(name, namespace, grace_period_seconds=grace)

    def logs(self, namespace: str, pod: str, lines: int = 40) -> str:
        """The end of a pod's log, or why there is none."""
        try:
            return str(self.core.read_namespaced_pod_log(pod, namespace, tail_lines=lines))
        except ApiException as error:
            return f"(no log: {error.reason})"

    # -- waiting -----------------------------------------------------------------------------------------

    def wait(self, namespace: str, name: str, what: str, holds: Callable[[Run], bool], seconds: float = 120.0) -> Run:
        """Wait until a condition on the run holds; when it does not, fail with everything that explains why."""
        end = time.monotonic() + seconds
        while True:
            run = self.run(namespace, name)
            if holds(run):
                return run
            if time.monotonic() > end:
                raise AssertionError(f"not within {seconds:.0f} s: {what}\n{self.diagnose(namespace, name)}")
            time.sleep(0.25)

    def wait_phase(self, namespace: str, name: str, *phases: str, seconds: float = 120.0) -> Run:
        """Wait for one of the phases; a run that ended otherwise fails at once."""

        def holds(run: Run) -> bool:
            phase = phase_of(run)
            if phase not in phases and phase in ("Succeeded", "Failed"):
                raise AssertionError(f"the run is {phase}, not {phases}\n{self.diagnose(namespace, name)}")
            return phase in phases

        return self.wait(namespace, name, f"{name} is {' or '.join(phases)}", holds, seconds)

    def wait_window(self, namespace: str, name: str, window: int, seconds: float = 120.0) -> Run:
        """Wait until the run's status says that a window is committed."""
        return self.wait(
            namespace,
            name,
            f"{name} has committed window {window}",
            lambda r: training(r).get("window", 0) >= window,
            seconds,
        )

    def diagnose(self, namespace: str, name: str) -> str:
        """How the pods of a run ended, the namespace's events, the ends of the logs, and the status.

        In this order: what is shown of a failed test may be cut off.
        """
        pods = self.core.list_namespaced_pod(namespace, label_selector=f"{labels.RUN}={name}").items
        told = []
        for pod in pods:
            told.append(f"--- pod {pod.metadata.name}: {pod.status.phase} on {pod.spec.node_name} {_ending(pod)}")
        told.append(f"--- events in {namespace}")
        told += [
            f"{event.last_timestamp or event.event_time} {event.involved_object.name} {event.reason}: {event.message}"
            for event in self.core.list_namespaced_event(namespace).items[-30:]
        ]
        for pod in pods:
            told += [f"--- log of {pod.metadata.name}", self.logs(namespace, pod.metadata.name)]
        try:
            status = self.run(namespace, name).get("status", {})
        except ApiException as error:
            status = {"error": str(error.reason)}
        told += [f"--- status of {namespace}/{name}", json.dumps(status)[:8000]]
        return "\n".join(told)


def until(
    what: str,
    holds: Callable[[], bool],
    seconds: float = 60.0,
    pause: float = 0.25,
    told: Callable[[], str] = lambda: "",
) -> None:
    """Wait for something that is no run; ``told`` says how things are, should it not come."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:.0f} s: {what}\n{told()}".rstrip())
        time.sleep(pause)


def phase_of(run: Run) -> str:
    """status.phase, or an empty text."""
    return str(run.get("status", {}).get("phase", ""))


def training(run: Run) -> dict[str, Any]:
    """status.training, or nothing."""
    return dict(run.get("status", {}).get("training") or {})


def condition(run: Run, kind: str) -> dict[str, Any]:
    """A condition of the run, or nothing."""
    found = [c for c in run.get("status", {}).get("conditions", []) if c["type"] == kind]
    return found[0] if found else {}


def members(run: Run) -> list[dict[str, Any]]:
    """status.members."""
    return list(run.get("status", {}).get("members", []))


def seat(pod: Any) -> str:
    """The seat that a pod holds."""
    return names.seat(pod.metadata.labels[labels.COHORT], int(pod.metadata.labels[labels.ORDINAL]))


def _ending(pod: Any) -> str:
    told = []
    for status in pod.status.container_statuses or []:
        state = status.state.terminated or status.state.waiting
        if state is not None:
            told.append(f"{state.reason} {getattr(state, 'exit_code', '')} {state.message or ''}")
    return "; ".join(told)
