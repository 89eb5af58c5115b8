"""Follows a run to its end, kills one member on the way, and shows both."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.markup import escape

from fdl_api import reading
from fdl_api.run import FdlRunStatus, RunPhase
from fdl_api.wire import State
from fdl_cli.demo import screen, story
from fdl_cli.demo.kube import DemoError, Kube
from fdl_cli.demo.peek import Peek

LOOK_SECONDS = 0.7
PLAIN_SECONDS = 5.0
START_LIMIT = 240.0
WHOLE_LIMIT = 1500.0

Pids = Callable[[str], list[int]]
"""Process ids on this machine of a pod, by the pod's name."""


@dataclass(slots=True)
class Seen:
    """What the follower has seen so far."""

    started: float
    state: State | None = None
    first_step_seconds: float | None = None
    killed: str = ""
    killed_at_samples: int = 0
    events: list[str] = field(default_factory=list)
    status: FdlRunStatus = field(default_factory=FdlRunStatus)


class Follower:
    """One run of the demo."""

    def __init__(self, console: Console, kube: Kube, peek: Peek, pids: Pids, *, namespace: str, run: str) -> None:
        self._console = console
        self._kube = kube
        self._peek = peek
        self._pids = pids
        self._namespace = namespace
        self._run = run
        self._told = 0
        self._plain_at = 0.0
        self._waiting = ""

    def follow(self, kill: bool) -> Seen:
        """Until the run has ended.

        Args:
            kill: whether to kill a member at a third of the samples.

        Raises:
            DemoError: it does not start, does not end, or fails; the text is the run's own sentence.
        """
        seen = Seen(started=time.monotonic())
        with Live(console=self._console, auto_refresh=False, transient=False) as view:
            while True:
                self._look(seen, kill)
                self._show(seen, view)
                if seen.status.phase is not None and seen.status.phase.is_terminal:
                    break
                self._check_limits(seen)
                time.sleep(LOOK_SECONDS)
        if seen.status.phase is RunPhase.FAILED:
            raise DemoError(f"the run failed: {_sentence(seen.status)}")
        return seen

    def _look(self, seen: Seen, kill: bool) -> None:
        found = self._kube.run(self._namespace, self._run)
        if found is None:
            raise DemoError(f"FdlRun {self._run} in namespace {self._namespace} has gone: somebody deleted it")
        seen.status = reading.lenient(FdlRunStatus, found.get("status") or {}).value
        coordinator = seen.status.coordinator.pod_name
        state = self._peek.state(coordinator) if coordinator else None
        state = state or story.from_status(seen.status)
        if state is None:
            return
        seen.events += story.happened(seen.state, state)
        seen.state = state
        if state.window > 0 and seen.first_step_seconds is None:
            seen.first_step_seconds = time.monotonic() - seen.started
            seen.events.append(f"first averaged window {seen.first_step_seconds:.0f} s after kubectl apply")
        if kill and not seen.killed and state.total_samples and 3 * state.samples >= state.total_samples:
            self._kill(seen, state)

    def _kill(self, seen: Seen, state: State) -> None:
        name = story.victim(state)
        if name is None:
            return
        pids = self._pids(name)
        for pid in pids:
            with suppress(ProcessLookupError):  # the kernel ends the rest of a pod with its first process
                os.kill(pid, signal.SIGKILL)
        seen.killed, seen.killed_at_samples = name, state.samples
        seen.events.append(f"SIGKILL to the {len(pids)} processes of {name}, a third of the way through")

    def _show(self, seen: Seen, view: Live) -> None:
        if seen.state is None or not seen.state.members:
            self._show_waiting(seen)
            return
        nodes = {member.name: member.node for member in seen.status.members}
        rows = story.rows(seen.state, nodes)
        if self._console.is_terminal:
            ended = seen.status.phase is not None and seen.status.phase.is_terminal
            shown = len(seen.events) if ended else screen.NEWEST  # the whole story stays on the screen
            view.update(screen.live(seen.state, rows, seen.events, shown), refresh=True)
            return
        for event in seen.events[self._told :]:
            self._console.print(f"* {escape(event)}", highlight=False)
        ended = seen.status.phase is not None and seen.status.phase.is_terminal
        if ended or time.monotonic() - self._plain_at > PLAIN_SECONDS:
            self._plain_at = time.monotonic()
            for line in screen.lines(seen.state, rows):
                self._console.print(escape(line), highlight=False)
        self._told = len(seen.events)

    def _show_waiting(self, seen: Seen) -> None:
        sentence = _sentence(seen.status)
        if sentence != self._waiting:
            self._waiting = sentence
            self._console.print(f"  {escape(sentence)}", highlight=False)

    def _check_limits(self, seen: Seen) -> None:
        age = time.monotonic() - seen.started
        if seen.first_step_seconds is None and age > START_LIMIT:
            raise DemoError(f"no training step within {START_LIMIT:.0f} s: {_sentence(seen.status)}")
        if age > WHOLE_LIMIT:
            raise DemoError(f"not finished within {WHOLE_LIMIT:.0f} s: {_sentence(seen.status)}")


def _sentence(status: FdlRunStatus) -> str:
    """Phase, and the conditions that explain it."""
    wanted = {"Failed": "True", "Placeable": "False", "Formed": "False", "Progressing": "False"}
    told = [c.message for c in status.conditions if wanted.get(c.type) == c.status and c.message]
    return f"{status.phase.value if status.phase else 'Pending'}" + (f": {'; '.join(told)}" if told else "")
