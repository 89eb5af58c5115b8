"""A bridged NCCL on a cluster: from two versions to one cohort, and to what its processes have really loaded."""

from pathlib import Path
from typing import Any

from fdl_api import names
from fdl_cli.local import Cluster
from fdl_cli.local.nodespec import parse_node
from tests.e2e.support import bridge, build, fleet
from tests.e2e.support.kube import Kube, until

RED = "name=red,amd=1:gfx942"
LIBRARY = f"{names.NCCL_DIR}/libnccl.so.2"
TELL = (
    "import signal; from fdl_trainer.variant import loaded_nccl, nccl_text; "
    "print('loaded', nccl_text(loaded_nccl('libnccl.so.2')), flush=True); signal.pause()"
)
"""What a member says of its NCCL, by the same function; a whole member needs a torch for NVIDIA's devices."""


def test_the_library_is_preloaded_on_the_node_that_needs_it_and_on_no_other(
    kube: Kube, cluster: Cluster, namespace: str, spec: dict[str, Any], tmp_path: Path
) -> None:
    """Versions differ, so that no cohort spans both nodes; with a bridge one does, and its process has the library."""
    image = next(each["image"] for each in spec["variants"] if each["name"] == "cuda")
    old = {"name": "cuda-old", "vendor": "nvidia", "image": image, "archs": ["sm_75"], "ncclVersion": "2.27.3"}
    bridged = {**old, "ncclBridge": {"image": bridge.IMAGE, "version": "2.28.3"}}
    fabric = {"groups": [{"name": "all", "socketInterface": "eth0"}]}
    with bridge.built(tmp_path, "2.28.3") as archive:
        cluster.load([archive])
    fleet.patch(kube, {"variants": [*spec["variants"], old], "fabric": fabric})
    cluster.node_set(parse_node("name=red,nvidia=2:sm_75"))
    try:
        fleet.probe_now(kube, *fleet.NODES)
        fleet.wait_condition(kube, "NCCLConsistent", "False", "give spec.variants[] an ncclBridge")
        fleet.patch(kube, {"variants": [*spec["variants"], bridged]})
        fleet.wait_condition(kube, "NCCLConsistent", "True", "NCCL 2.28 on all 2 nvidia nodes, bridged on red")

        container = {"name": names.TRAINER_CONTAINER, "command": ["python", "-c", TELL]}
        cohort = {"name": "gpu", "vendor": "nvidia", "allowSimulated": True, "replicas": 2, "devicesPerReplica": 2}
        cohort["podTemplate"] = {"spec": {"containers": [container]}}
        kube.create(namespace, build.digits("bridged", mode="nccl-cadence", cohorts=[cohort]))

        def says(node: str, words: str) -> bool:
            pods = [pod for pod in kube.live_pods(namespace, "bridged") if pod.spec.node_name == node]
            return bool(pods) and words in kube.logs(namespace, pods[0].metadata.name)

        for node, words in (("red", "loaded 2.28.3"), ("green", "loaded None")):
            told = f"the member on {node} says: {words}"
            until(told, lambda n=node, w=words: says(n, w), 90, told=lambda: kube.diagnose(namespace, "bridged"))
        pods = {pod.spec.node_name: pod for pod in kube.live_pods(namespace, "bridged")}
        assert [each.name for each in pods["red"].spec.init_containers] == ["fdl-nccl"]
        assert pods["green"].spec.init_containers is None
        for node, has in (("red", True), ("green", False)):
            (pid,) = cluster.node_pids(namespace, pods[node].metadata.name)
            assert (LIBRARY in Path(f"/proc/{pid}/maps").read_text()) is has, node

        fleet.patch(kube, {"variants": [*spec["variants"], old]})
        fleet.wait_condition(kube, "NCCLConsistent", "False")
        kube.create(
            namespace, build.digits("apart", mode="nccl-cadence", cohorts=[cohort], runPolicy={"suspend": True})
        )
        told = fleet.fdl(cluster, "explain", "run", "apart", "--namespace", namespace).stdout
        assert "loads NCCL 2.27 and the cohort runs 2.28" in told, told
    finally:
        cluster.node_set(parse_node(RED))
    fleet.replace(kube, spec)
    fleet.probe_now(kube, *fleet.NODES)
    fleet.wait_condition(kube, "NCCLConsistent", "True")
