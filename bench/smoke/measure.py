"""One function a figure."""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median

from bench.smoke.figures import Figure, middle, operator_calls
from bench.smoke.lab import GPU_NODE, Lab, wait_until
from fdl_api import labels
from fdl_cli.demo import setup
from fdl_cli.demo.kube import DemoError
from fdl_cli.demo.peek import Peek

KILLS = 5
ROUNDS = 2
WARM_SECONDS = 6.0
RATE_SECONDS = 15.0
TOUCHES = 20
CHANGES = ((1, "sm_80"), (4, "sm_90"), (1, "sm_120"), (2, "sm_80"), (2, "sm_90"))
LOOKS = """
import asyncio, os, time
from fdl_prober.observe import Observer
from fdl_prober.settings import from_env

async def looks():
    observer = Observer(from_env(os.environ))
    for _ in range(5):
        started = time.perf_counter()
        await observer.look(simulated=True)
        print(time.perf_counter() - started)

asyncio.run(looks())
"""
OPERATOR = "system:serviceaccount:fdl-system:fdl-operator"


def up(lab: Lab) -> Figure:
    """Seconds of ``fdl local up`` with everything built."""
    took = lab.up()
    return Figure("fdl local up, warm", round(took, 1), "s", 15, note="three nodes Ready, images in all of them")


def first_step(lab: Lab, name: str) -> Figure:
    """Seconds from apply to the first committed window, images present."""
    started = time.monotonic()
    lab.start(name)
    wait_until("the first window is committed", 180, lambda: bool(lab.commits(name)), pause=0.05)
    took = time.monotonic() - started
    return Figure("apply -> first step", round(took, 1), "s", 20, note="first commit in the loaders' own log")


def deaths(lab: Lab, name: str) -> list[Figure]:
    """Seconds from a SIGKILL to the survivors' next commit, and to the first commit with the successor's work."""
    stalls: list[float] = []
    returns: list[float] = []
    for _ in range(KILLS):
        pods = [pod for pod in lab.kube.pods("fdl-bench", name) if pod.metadata.labels.get("fdl.dev/role") == "member"]
        running = sorted(pod.metadata.name for pod in pods if pod.status.phase == "Running")
        known = {uid for _, _, uids in lab.commits(name) for uid in uids}
        epoch = max(epoch for epoch, _, _ in lab.commits(name))
        lab.kill(running[1])
        killed = time.monotonic()
        wait_until("the survivors commit", 60, partial(_is_newer, lab, name, epoch), pause=0.005)
        stalls.append(time.monotonic() - killed)
        wait_until("the successor contributes", 120, partial(_others, lab, name, known), pause=0.05)
        returns.append(time.monotonic() - killed)
        time.sleep(WARM_SECONDS)
    return [
        middle("death -> survivors' next step, p50", stalls, "s", 0.3, f"{KILLS} SIGKILLs, first commit of an epoch"),
        middle("death -> successor contributes, p50", returns, "s", 20, "first commit with batches of the successor"),
    ]


def _is_newer(lab: Lab, name: str, than: int) -> bool:
    return any(epoch > than for epoch, _, _ in lab.commits(name))


def _trains(lab: Lab, name: str) -> bool:
    return len(lab.commits(name)) > 5


def _others(lab: Lab, name: str, known: set[str]) -> bool:
    return any(uids - known for _, _, uids in lab.commits(name))


def efficiency(lab: Lab) -> Figure:
    """Committed samples/s of three members together over the sum of what each does alone at the same time."""
    together: list[float] = []
    alone: list[float] = []
    for number in range(ROUNDS):
        name = f"joint{number}"
        lab.start(name)
        together.append(sum(_rates(lab, [name])))
        lab.remove(name)
        solo = {f"solo{number}-{node.name}": str(node.name) for node in setup.NODES}
        for run, node in solo.items():
            lab.start(run, members=1, node=node)
        alone.append(sum(_rates(lab, list(solo))))
        lab.remove(*solo)
    ratios = [joint / sum_of for joint, sum_of in zip(together, alone, strict=True)]
    note = f"{ROUNDS} rounds, joint {[round(r) for r in together]} against solo {[round(r) for r in alone]} samples/s"
    value = round(median(ratios), 3)
    samples = tuple(round(ratio, 3) for ratio in ratios)
    return Figure("efficiency", value, "", 0.85, better="higher", samples=samples, note=note)


def _rates(lab: Lab, names: list[str]) -> list[float]:
    """Samples a second of runs that train side by side, over the same interval."""
    for name in names:
        wait_until(f"{name} trains", 180, partial(_trains, lab, name))
    time.sleep(WARM_SECONDS)
    views = {name: lab.peek(name) for name in names}
    try:
        first = {name: _samples(lab, views[name], name) for name in names}
        time.sleep(RATE_SECONDS)
        second = {name: _samples(lab, views[name], name) for name in names}
    finally:
        for view in views.values():
            view.__exit__(None, None, None)
    return [(second[n][1] - first[n][1]) / (second[n][0] - first[n][0]) for n in names]


def _samples(lab: Lab, view: Peek, name: str) -> tuple[float, int]:
    state = lab.state(view, name)
    if state is None:
        raise DemoError(f"the coordinator of {name} does not answer")
    return time.monotonic(), state.samples


def hardware_change(lab: Lab) -> Figure:
    """Seconds from a change of a node's simulated devices to the labels that say so, by another count and kind."""
    lab.add_devices("nvidia=2:sm_90")
    wait_until("the new node is labelled", 180, partial(_labelled, lab, 2, "sm_90"))
    time.sleep(WARM_SECONDS)
    delays = []
    with ThreadPoolExecutor(1) as other:
        for count, arch in CHANGES:
            started = time.monotonic()
            changing = other.submit(lab.set_devices, f"nvidia={count}:{arch}")
            wait_until(f"the labels say {count} {arch}", 60, partial(_labelled, lab, count, arch))
            delays.append(time.monotonic() - started)
            changing.result()
    note = f"{len(CHANGES)} changes of count and architecture, asked by kubectl every 0.1 s"
    return middle("device change -> label, p50", delays, "s", 5, note)


def _labelled(lab: Lab, count: int, arch: str) -> bool:
    found = lab.node_labels(GPU_NODE)
    kinds = [key for key in found if key.startswith(labels.ARCH_PREFIX)]
    told = (found.get(labels.count("nvidia")), found.get(labels.GPU_ARCH), kinds)
    return told == (str(count), arch, [labels.arch(arch)])


def probers(lab: Lab) -> list[Figure]:
    """The probers' resident memory after the bench so far, and the time of a look at a node with devices."""
    pods = lab.probers()
    if GPU_NODE not in pods:
        raise DemoError(f"no prober runs on node {GPU_NODE}")
    sizes = sorted(lab.memory(pod) for pod in pods.values())
    samples = tuple(round(size, 1) for size in sizes)
    memory = Figure("light probe, resident", samples[-1], "MB", 40, samples=samples, note="the largest of all nodes")
    told = lab.tools.call(lab.tools.kubectl, "exec", "-n", setup.SYSTEM, pods[GPU_NODE], "--", "python", "-c", LOOKS)
    seconds = [float(line) for line in told.split()]
    return [memory, middle("light probe, p50", seconds, "s", 1, "looks in the pod of a node with simulated devices")]


def idle_calls(lab: Lab) -> Figure:
    """API calls of the operator for reconciles that change nothing, counted in the API server's audit log."""
    lab.start("asleep", suspend=True)
    wait_until("the run is suspended", 60, lambda: lab.status("asleep").get("phase") == "Suspended")
    time.sleep(3)
    offset = lab.audit_size()
    for number in range(TOUCHES):
        lab.kubectl("annotate", "--overwrite", "fdlrun", "asleep", f"bench/touched={number}")
    time.sleep(3)
    calls = operator_calls(lab.audit_lines(offset), OPERATOR)
    lab.remove("asleep")
    note = f"{TOUCHES} events of a run that needs nothing; without watches and the Lease"
    shown = f"; calls: {', '.join(sorted(set(calls))[:5])}" if calls else ""
    return Figure("operator calls, no change", float(len(calls)), "calls", 0, note=note + shown)
