"""The command ``fdl demo``."""

import json
import sys
import time

import click
from rich.console import Console
from rich.markup import escape

from fdl_api.run import FdlRunStatus
from fdl_cli.demo import proof, setup
from fdl_cli.demo.follow import Follower, Seen
from fdl_cli.demo.kube import DemoError, wait
from fdl_cli.demo.peek import Peek
from fdl_cli.images.errors import ImageError
from fdl_cli.local import LocalError

NAMESPACE = "fdl-demo"
RUN = "fashion"
SAMPLES, EPOCHS = 60_000, 2
STEPS = 6
TRAINING_STEP = 5


class Headlines:
    """Numbers the steps and says how long each took."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._number = 0
        self._started = 0.0

    def step(self, text: str) -> None:
        """A step begins."""
        self.close()
        self._number += 1
        self._started = time.monotonic()
        self._console.print(f"[bold][{self._number}/{STEPS}][/bold] {escape(text)}", highlight=False)

    def left_behind(self) -> str:
        """What goes on without this program, and what to do about it."""
        if self._number < TRAINING_STEP:
            return "What is built is kept: the next 'make demo' goes on from it. 'make down' removes the cluster."
        return (
            f"The run {RUN} in namespace {NAMESPACE} trains on without you; the next 'make demo' removes it and starts "
            "it anew. 'make down' removes the cluster."
        )

    def close(self) -> None:
        """The step ended."""
        if self._number:
            self._console.print(f"  done in {time.monotonic() - self._started:.0f} s", style="dim", highlight=False)


@click.command()
@click.option("--name", default="fdl", show_default=True, help="Name of the local cluster.")
@click.option("--kill/--no-kill", default=True, show_default=True, help="Kill one member a third of the way through.")
def demo(name: str, kill: bool) -> None:
    """From nothing to a trained model on a real Kubernetes, with a death on the way."""
    console = Console(soft_wrap=not sys.stdout.isatty())  # words stay whole on a screen, lines in a file
    headlines = Headlines(console)
    try:
        _demo(name, kill, console, headlines)
    except KeyboardInterrupt:
        console.print(f"\nInterrupted. {headlines.left_behind()}")
        raise SystemExit(130) from None
    except (DemoError, LocalError, ImageError) as error:
        raise click.ClickException(str(error)) from error


def _demo(name: str, kill: bool, console: Console, headlines: Headlines) -> None:
    ready = setup.prepare(name, console, headlines.step)
    manifest = ready.source / "examples" / "fashion" / "fdlrun.yaml"
    headlines.step("kubectl apply -f examples/fashion/fdlrun.yaml: training on three unequal nodes")
    removed = setup.apply(ready, NAMESPACE, manifest, RUN, RUN)
    if removed:
        console.print(f"  The earlier run {RUN} and its checkpoints were removed first", highlight=False)
    with Peek(ready.tools, ready.kube, NAMESPACE, RUN) as peek:

        def pids(pod: str) -> list[int]:
            return ready.cluster.node_pids(NAMESPACE, pod)

        seen = Follower(console, ready.kube, peek, pids, namespace=NAMESPACE, run=RUN).follow(kill)
    headlines.step("What the run left behind, checked in a pod by programs that know nothing of the ledger")
    answer = _prove(ready)
    headlines.close()
    _summary(console, seen, answer, name, kill)


def _prove(ready: setup.Ready) -> proof.Answer:
    question = proof.Question(
        run=RUN,
        claim=RUN,
        image="fdl.local/examples:dev",
        samples=SAMPLES,
        epochs=EPOCHS,
        use="/opt/fdl/examples/fashion/use.py",
    )
    pod = f"{RUN}-proof"
    kubectl = ("-n", NAMESPACE)
    ready.tools.call(ready.tools.kubectl, *kubectl, "delete", "pod", pod, "--ignore-not-found", "--wait")
    ready.tools.call(ready.tools.kubectl, *kubectl, "create", "-f", "-", text=json.dumps(proof.pod(pod, question)))

    def phase() -> str:
        found = ready.kube.pod(NAMESPACE, pod)
        return "" if found is None else str(found.status.phase)

    wait("the check of the results ends", proof.LIMIT_SECONDS, lambda: phase() in ("Succeeded", "Failed"))
    log = ready.kube.logs(NAMESPACE, pod)
    if phase() == "Failed":
        raise DemoError(f"the check of the results failed:\n{log}")
    ready.tools.call(ready.tools.kubectl, *kubectl, "delete", "pod", pod, "--wait=false")
    return proof.read(log)


def _summary(console: Console, seen: Seen, answer: proof.Answer, name: str, kill: bool) -> None:
    status = seen.status
    lines = [*_figures(seen, status), ("accounting", proof.sentence(answer)), ("export", answer.exported)]
    lines.append(("plain torch", f"loads it without fdl: {answer.used} on the held-out 10,000"))
    if kill:
        lines.insert(1, ("killed", f"{seen.killed or 'nobody'} by SIGKILL; the others never restarted"))
    console.print()
    for label, text in lines:
        console.print(f"  [bold]{label:<12}[/bold] {escape(text)}", highlight=False)
    console.print("\nLook further:", style="bold")
    for command in (
        f"export KUBECONFIG=$(.venv/bin/fdl local kubeconfig --path --name {name})",
        "export PATH=$PWD/.venv/bin:$(dirname $(.venv/bin/fdl local bin kubectl)):$PATH      # fdl, kubectl, helm",
        f"kubectl -n {NAMESPACE} describe fdlrun {RUN}",
        f"kubectl -n {NAMESPACE} logs -l fdl.dev/run={RUN} --prefix --tail 20",
        f"kubectl -n {NAMESPACE} apply -f examples/fetch.yaml",
        f"kubectl -n {NAMESPACE} wait --for=condition=Ready pod/fetch",
        f"kubectl -n {NAMESPACE} exec fetch -- cat {proof.MOUNT}/{RUN}.pt > {RUN}.pt      # the trained model, here",
        "make down      # remove everything",
    ):
        console.print(f"  {command}", markup=False, highlight=False, soft_wrap=True)
    if not answer.audit.get("ok"):
        raise DemoError(f"the accounting does not hold: {proof.sentence(answer)}")
    if kill and not seen.killed:
        raise DemoError("the run ended before a third of its samples was seen, so that nobody was killed")


def _figures(seen: Seen, status: FdlRunStatus) -> list[tuple[str, str]]:
    training = status.training
    if training is None:
        return []
    told = [("accuracy", f"{training.metrics.get('accuracy', float('nan')):.4f} on 10,000 images never trained on")]
    if seen.first_step_seconds is not None:
        told.append(("first step", f"{seen.first_step_seconds:.0f} s after kubectl apply"))
    if seen.state is not None and seen.state.recoveries:
        told.append(("recovery", f"{max(seen.state.recoveries):.2f} s from the death to the survivors' next commit"))
    checkpoint = training.checkpoint
    if checkpoint is not None:
        verified = "verified" if checkpoint.verified else "NOT verified"
        told.append(("checkpoint", f"{checkpoint.path} ({checkpoint.size_bytes / 2**20:.1f} MiB, {verified})"))
    return told
