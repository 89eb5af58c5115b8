"""A run that nobody disturbs: it succeeds, shares work by speed, counts every sample, and leaves a model that loads."""

from statistics import fmean
from typing import Any

from fdl_api import labels
from fdl_api.wire import RankWindow
from fdl_cli.demo.kube import Kube as PeekKube
from fdl_cli.demo.kube import Tools
from fdl_cli.demo.peek import Peek
from fdl_cli.local import Cluster
from tests.e2e.support import build, evidence
from tests.e2e.support.kube import Kube, condition, training, until

EPOCHS = 12
USE_DIGITS = "/opt/fdl/examples/digits/use.py"


def test_digits_on_three_unequal_nodes(kube: Kube, cluster: Cluster, tools: Tools, namespace: str) -> None:
    """Apply -> Succeeded on three unequal nodes: accuracy, shares, accounting, checkpoint, export."""
    # Windows so small that an epoch has more than ten.
    elche = {"anchor": 2, "maxAnchor": 3}
    cohorts = [build.cpu_cohort("digits", 3, one_a_node=True)]
    join = {"minMembers": 3}  # a node may take longer to begin than the run to end
    run_spec = build.digits("digits", epochs=EPOCHS, batch_size=8, width=48, elche=elche, cohorts=cohorts, join=join)
    kube.create(namespace, run_spec)
    windows: dict[int, list[RankWindow]] = {}
    with Peek(tools, PeekKube(cluster.kubeconfig), namespace, "digits") as view:

        def succeeded(run: dict[str, Any]) -> bool:
            coordinator = run.get("status", {}).get("coordinator", {}).get("podName", "")
            state = view.state(coordinator) if coordinator else None
            if state is not None and state.ranks:
                windows[state.window] = state.ranks
            phase = run.get("status", {}).get("phase")
            assert phase != "Failed", kube.diagnose(namespace, "digits")
            return bool(phase == "Succeeded")

        run = kube.wait(namespace, "digits", "the run succeeds", succeeded, seconds=240)
    nodes = {pod.spec.node_name for pod in kube.pods(namespace, "digits")}
    assert nodes == {"fast", "medium", "slow"}
    now = training(run)
    assert now["metrics"]["accuracy"] >= 0.95
    assert now["window"] >= 10 * EPOCHS, "fewer than ten windows an epoch"
    assert now["samples"] == now["totalSamples"] == EPOCHS * evidence.DIGITS_SAMPLES
    assert now["checkpoint"]["final"]
    assert now["checkpoint"]["verified"]
    assert condition(run, "Complete")["status"] == "True"
    assert condition(run, "Failed").get("status") != "True"
    _check_shares(windows)
    answer = evidence.examine(kube, namespace, run, EPOCHS, USE_DIGITS)
    assert answer.audit["ok"], answer.audit
    assert answer.audit["windows"] == now["window"]
    assert float(answer.used.split()[-1]) >= 0.95


def _check_shares(windows: dict[int, list[RankWindow]]) -> None:
    """Over the windows that were seen, each rank's batches are within 15 % or one batch of its speed's share."""
    settled = [ranks for number, ranks in windows.items() if number > 10 and all(r.ms_per_batch for r in ranks)]
    assert len(settled) >= 10, f"only {len(settled)} windows were seen"
    for place in range(3):
        fair = fmean(_fair(ranks, place) for ranks in settled)
        quota = fmean(ranks[place].quota for ranks in settled)
        assert abs(quota - fair) <= max(1.0, 0.15 * fair), f"{settled[-1][place]}: {quota:.2f}, fair is {fair:.2f}"


def _fair(ranks: list[RankWindow], place: int) -> float:
    """Batches of a window that a rank's speed entitles it to."""
    speeds = [1 / rank.ms_per_batch for rank in ranks]
    return sum(rank.quota for rank in ranks) * speeds[place] / sum(speeds)


def test_sync_mode_averages_after_every_batch(kube: Kube, cluster: Cluster, namespace: str) -> None:
    """cpu-sync: one batch a rank and window."""
    kube.create(namespace, build.digits("sync", members=2, epochs=1, batch_size=32, mode="cpu-sync"))
    run = kube.wait_phase(namespace, "sync", "Succeeded", seconds=180)
    proof = evidence.accounting(cluster, run, epochs=1)
    batches = -(-evidence.DIGITS_SAMPLES // 32)
    assert proof.windows >= batches // 2
    assert training(run)["anchor"] == 1


def test_a_run_owns_exactly_what_the_design_says_and_takes_it_along(kube: Kube, namespace: str) -> None:
    """Objects of a run carry ownerReferences; deleting the run deletes them all."""
    kube.create(namespace, build.digits("owner", members=1, epochs=200))
    kube.wait_phase(namespace, "owner", "Running", seconds=180)
    selector = f"{labels.RUN}=owner"
    listers = {
        "pods": kube.core.list_namespaced_pod,
        "secrets": kube.core.list_namespaced_secret,
        "configmaps": kube.core.list_namespaced_config_map,
        "services": kube.core.list_namespaced_service,
        "networkpolicies": kube.network.list_namespaced_network_policy,
    }
    counts = {}
    for kind, list_of in listers.items():
        items = list_of(namespace, label_selector=selector).items
        counts[kind] = len(items)
        for item in items:
            owners = item.metadata.owner_references or []
            assert [owner.kind for owner in owners] == ["FdlRun"], f"{kind} {item.metadata.name} has owners {owners}"
            assert not owners[0].block_owner_deletion
    assert counts == {"pods": 2, "secrets": 1, "configmaps": 1, "services": 1, "networkpolicies": 1}
    for pod in kube.core.list_namespaced_pod(namespace, label_selector=selector).items:
        assert pod.spec.automount_service_account_token is False
    kube.delete(namespace, "owner")

    def going() -> bool:
        left = [item for list_of in listers.values() for item in list_of(namespace, label_selector=selector).items]
        return all(item.metadata.deletion_timestamp for item in left)

    until("everything of the deleted run is gone or, as its pods, told to end", going, seconds=30)
