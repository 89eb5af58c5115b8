"""The light loop: look, decide, write what changed. Labels stay when the prober goes."""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from fdl_api import labels
from fdl_api.cluster_nodes import FabricSpec, ProberSpec, Variant
from fdl_api.report import DeepResult, GoneDevice, Report, of_node
from fdl_prober import decide, deep, history, pace
from fdl_prober.facts import gather
from fdl_prober.hotplug import Mark
from fdl_prober.observe import Observation, Observer
from fdl_prober.server import Server, ServerError
from fdl_prober.settings import Settings

log = logging.getLogger("fdl_prober")

CLUSTER_POLL_SECONDS = 60.0
CHANGE_POLL_SECONDS = 2.0


@dataclass
class State:
    """What a prober remembers between two looks. All of it can be lost: the node's annotation brings it back."""

    simulated: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    reported: bool = False
    written: tuple[Mapping[str, str], Report] | None = None
    report: Report | None = None
    cluster_version: str | None = None
    variants: tuple[Variant, ...] = ()
    fabric: FabricSpec | None = None
    max_age_seconds: int = field(default_factory=lambda: ProberSpec().report_max_age_seconds)
    cluster_known: bool = False
    cluster_mark: str = ""
    cluster_asked: datetime | None = None
    deep: dict[str, DeepResult] = field(default_factory=dict)
    image_trouble: dict[str, str] = field(default_factory=dict)
    known: tuple[GoneDevice, ...] | None = None
    waits: int = 0
    marks: tuple[Mark, ...] | None = None


def is_simulated(node: Mapping[str, object]) -> bool:
    """Whether a node object is labelled as one with simulated devices."""
    metadata = node["metadata"]
    assert isinstance(metadata, Mapping)
    return (metadata.get("labels") or {}).get(labels.SIMULATED) == "true"


def socket_interface(fabric: FabricSpec | None, node_labels: Mapping[str, str]) -> str:
    """The interface that the cluster names for a node: of the first group whose labels the node has; empty for none."""
    for group in fabric.groups if fabric else ():
        if group.node_selector.items() <= node_labels.items():
            return group.socket_interface
    return ""


class Prober:
    """One node's prober.

    Args:
        settings: where and how often to look.
        server: the API server.
        now: clock, aware of its time zone.
    """

    def __init__(
        self, settings: Settings, server: Server, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._settings = settings
        self._server = server
        self._now = now
        self._observer = Observer(settings)
        self._asked = asyncio.Event()
        self.state = State()

    async def start(self) -> None:
        """Read the node once: whether it is simulated, and what deep checks are known from before.

        Raises:
            ServerError: the node cannot be read.
        """
        node = await self._server.node()
        self._take_in(node)
        before = of_node(node["metadata"].get("annotations"))
        if before is not None:
            self.state.report = before
            self.state.deep = dict(before.deep)

    def _take_in(self, node: Mapping[str, Any]) -> None:
        self.state.simulated = is_simulated(node)
        self.state.labels = node["metadata"].get("labels") or {}
        self.state.reported = labels.REPORT in (node["metadata"].get("annotations") or {})

    def saw(self, node: Mapping[str, Any], asked: bool) -> None:
        """Take in what the watch shows of the node; to be called in the loop's own thread.

        Args:
            node: the Node object.
            asked: whether it asks for a look.
        """
        was = self.state.simulated
        self._take_in(node)
        if asked:
            self.look_soon()
        elif self._undone() or was != self.state.simulated:
            self._asked.set()

    def _undone(self) -> bool:
        """Whether somebody took away what was last written, or the node was removed and is back."""
        written = self.state.written
        return written is not None and not (self.state.reported and written[0].items() <= self.state.labels.items())

    async def _learn_cluster(self) -> None:
        """Refresh variants when the FdlCluster's spec changed; keep the known ones when the server does not answer."""
        state, now = self.state, self._now()
        # A clock that was set back makes no answer recent.
        recent = (
            state.cluster_asked is not None and abs((now - state.cluster_asked).total_seconds()) < CLUSTER_POLL_SECONDS
        )
        if state.cluster_known and recent:
            return
        version = await self._server.cluster_version()
        state.cluster_asked = now
        if version is None:
            state.cluster_known, state.cluster_version, state.variants, state.fabric = False, None, (), None
            state.cluster_mark = ""
        elif version != state.cluster_version or not state.cluster_known:
            spec, state.cluster_mark = await self._server.cluster()
            state.variants, state.max_age_seconds = spec.variants, spec.prober.report_max_age_seconds
            state.fabric = spec.fabric
            state.cluster_version, state.cluster_known = version, True

    async def _learn_deep(self) -> None:
        """Read the pods that answer what the last report asked for. Asks the server only while something is wanted."""
        report = self.state.report
        if report is None or not report.deep_wanted:
            self.state.image_trouble = {}
            return
        node, items = self._settings.node, await self._server.deep_pods()
        self.state.image_trouble = deep.image_trouble(items, node, report.deep_wanted)
        pods = deep.finished(items, node)
        self.state.deep = deep.collect(self.state.deep, node, report.deep_wanted, pods, self._now())

    async def step(self) -> bool:
        """One look, and a write if there is something to say.

        Returns:
            Whether anything was written.

        Raises:
            ServerError: the server refused the write, or did not yet say which variants there are.
        """
        for learn in (self._learn_cluster, self._learn_deep):
            try:
                await learn()
            except ServerError as error:
                if not self.state.cluster_known and not error.refused:
                    raise  # a report without variants would take their labels away
                log.warning("%s; going on with what is known", error)
        # Before the look: what changes while it lasts is a change after it.
        self.state.marks = await self._observer.marks(self.state.simulated)
        return await self._publish(await self._observer.look(self.state.simulated))

    async def _publish(self, seen: Observation) -> bool:
        state, now = self.state, self._now()
        if state.known is None:
            state.known = history.remembered(state.report, seen.host.boot_id)
        facts = gather(
            self._settings.node,
            seen,
            simulated=state.simulated,
            variants=state.variants,
            cluster_known=state.cluster_known,
            deep=deep.settled(state.deep, now),
            clock_offset_seconds=self._server.clock_offset_seconds,
            known=state.known,
            socket_interface=socket_interface(state.fabric, state.labels),
            image_trouble=state.image_trouble,
            judged_by=state.cluster_mark,
        )
        state.known = history.update(state.known, facts.devices)
        desired = decide.desired(facts, now)
        waiting = not state.cluster_known or any(driver.state == "not-ready" for driver in facts.drivers.values())
        state.waits = state.waits + 1 if waiting else 0
        limit = pace.refresh_seconds(self._settings, state.max_age_seconds)
        # Who changes a label again and again is answered once a period.
        limit = min(limit, self._settings.period_seconds) if self._undone() else limit
        if not pace.must_write(state.written, desired, limit, now):
            return False
        node = await self._server.apply(decide.apply_body(self._settings.node, *desired))
        self._log_changes(desired)
        state.written, state.report, state.deep = desired, desired[1], dict(facts.deep)
        self._take_in(node)
        return True

    def _log_changes(self, desired: tuple[Mapping[str, str], Report]) -> None:
        before = self.state.written[0] if self.state.written else {}
        for key in sorted(before.keys() | desired[0].keys()):
            if before.get(key) != desired[0].get(key):
                log.info("%s: %s -> %s", key, before.get(key, "(none)"), desired[0].get(key, "(none)"))

    async def run(self, stop: asyncio.Event) -> None:
        """Look until told to stop. A server that does not answer is asked again at the next look; what nobody thought
        of costs one look, and is written into the log: a prober that ends would only meet it again.
        """
        started = False
        while not stop.is_set():
            try:
                if not started:
                    await self.start()
                    started = True
                await self.step()
            except ServerError as error:
                log.error("%s", error)
            except Exception:
                log.exception("the look failed, and nothing was written")
                self.state.waits += 1
            delay = pace.look_again_seconds(self._settings.period_seconds, self.state.waits, random.random())  # noqa: S311
            await self._rest(stop, delay)

    def look_soon(self) -> None:
        """Ask for a look, at FdlCluster too; to be called in the loop's own thread."""
        self.state.cluster_asked = None
        self._asked.set()

    async def changed(self) -> bool:
        """Whether hardware or drivers are not as they were at the last look."""
        marks = await self._observer.marks(self.state.simulated)
        return marks is not None and self.state.marks is not None and marks != self.state.marks

    async def _rest(self, stop: asyncio.Event, delay: float) -> None:
        """Wait for the next look: the whole delay, or until somebody asks or hardware changes."""
        loop = asyncio.get_running_loop()
        end = loop.time() + delay
        while not stop.is_set() and not self._asked.is_set() and (left := end - loop.time()) > 0:
            try:
                await asyncio.wait_for(stop.wait(), min(left, CHANGE_POLL_SECONDS))
            except TimeoutError:
                if await self.changed():
                    break
        self._asked.clear()
