"""What the demo needs before training: images, cluster, chart, run. Each step keeps what is there already."""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from rich.console import Console

from fdl_cli.demo.kube import DemoError, Kube, Tools, wait
from fdl_cli.images.command import ensure_images, image_store
from fdl_cli.images.inputs import find_source
from fdl_cli.local import Cluster, NodeSpec
from fdl_cli.local.commands.progress import build_progress
from fdl_cli.local.render import DRIVER_ROOT

NODES = (
    NodeSpec(name="fast", cpu=Decimal("0.8")),
    NodeSpec(name="medium", cpu=Decimal("0.5")),
    NodeSpec(name="slow", cpu=Decimal("0.35")),
)
"""Unequal on purpose; together a little less than the two cores of a small machine."""
SYSTEM = "fdl-system"
RELEASE = "fdl"
IMAGES = ("operator", "prober", "trainer-cpu", "examples")


@dataclass(frozen=True, slots=True)
class Ready:
    """A cluster with fdl in it."""

    cluster: Cluster
    tools: Tools
    kube: Kube
    source: Path


def checkout() -> Path:
    """The source checkout that this program runs from."""
    return find_source(Path(__file__).resolve().parent)


def prepare(name: str, console: Console, step: Callable[[str], None]) -> Ready:
    """Programs, images, cluster and chart, in that order; what is up to date costs next to nothing.

    Raises:
        DemoError, LocalError, ImageError: a step failed; the text says what to do.
    """
    source = checkout()

    def say(sentence: str) -> None:
        console.print(f"  {sentence}", markup=False, highlight=False)

    step("The cluster's programs: Kubernetes 1.37, etcd, containerd, ... from pinned sources")
    with build_progress() as report:
        cluster = Cluster(name, say=say, report=report)
        if not cluster.running:
            cluster.build()
    step("Container images: operator, prober, trainer, examples with Fashion-MNIST")
    archives = ensure_images(console=console, source=source)
    step(f"The cluster '{name}': nodes fast, medium and slow")
    cluster.up(() if cluster.running else NODES, images=[archives[image] for image in IMAGES if image in archives])
    tools = Tools(cluster.kubeconfig, cluster.bin / "kubectl", cluster.bin / "helm")
    step(f"helm upgrade --install {RELEASE} charts/fdl --namespace {SYSTEM}")
    install(tools, source)
    return Ready(cluster, tools, Kube(cluster.kubeconfig), source)


def install(tools: Tools, source: Path, *settings: str, **trees: str) -> None:
    """Install or upgrade the chart and wait until operator and prober are ready.

    Args:
        tools: helm and the cluster.
        source: the checkout.
        settings: ``key=value`` for ``helm --set``.
        trees: values as JSON text by top-level key, for ``helm --set-json``.
    """
    # The tag stays 'dev', so a new image has to be told to the Deployment: its hash is an annotation of the pods.
    store = image_store()
    stamps = []
    for part in ("operator", "prober"):
        record = store.current(part)
        if record is not None:
            stamps += ["--set-string", f"{part}.podAnnotations.fdl\\.dev/image-inputs={record.inputs}"]
    simulated = f"prober.simulatedDriverRoot={DRIVER_ROOT}"
    extra = [word for setting in (simulated, *settings) for word in ("--set", setting)]
    extra += [word for key, text in trees.items() for word in ("--set-json", f"{key}={text}")]
    tools.call(
        tools.helm,
        *("upgrade", "--install", RELEASE, str(source / "charts" / "fdl"), "--namespace", SYSTEM, "--create-namespace"),
        *("--wait", "--timeout", "180s"),
        *stamps,
        *extra,
    )


def apply(ready: Ready, namespace: str, manifest: Path, run: str, claim: str) -> bool:
    """Apply a manifest as a user would, after removing an earlier run of that name with its checkpoints.

    Returns:
        Whether there was an earlier one.
    """
    tools = ready.tools
    earlier = ready.kube.run(namespace, run) is not None
    if earlier:
        tools.call(tools.kubectl, "-n", namespace, "delete", "fdlrun", run, "--wait=false")
        wait(f"the earlier run {run} is deleted", 90, lambda: not ready.kube.pods(namespace, run))
    tools.call(tools.kubectl, "-n", namespace, "delete", "pvc", claim, "--ignore-not-found", "--wait", "--timeout=60s")
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    text = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: " + namespace + "\n  labels:\n"
    text += "".join(f"    {key}: {value}\n" for key, value in labels.items())
    tools.call(tools.kubectl, "apply", "-f", "-", text=text)
    if not manifest.is_file():
        raise DemoError(f"{manifest} is missing: run the demo from a checkout of fdl")
    tools.call(tools.kubectl, "-n", namespace, "apply", "-f", str(manifest))
    return earlier
