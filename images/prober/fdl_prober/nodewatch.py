"""A watch of the own node: somebody asks for a look, the kubelet's devices changed, or labels are not as written.

One connection stays open, as each kubelet's does, in a thread of its own. What it misses is found at the next look.
"""

import http.client
import json
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

from fdl_api import labels
from fdl_prober.access import Access

log = logging.getLogger("fdl_prober")

STREAM_SECONDS = 300
"""The server ends a stream after this time, and it is opened again: a connection that died unseen lasts no longer."""

SILENCE_SECONDS = STREAM_SECONDS + 30.0
RETRY_FIRST_SECONDS = 5.0
RETRY_LAST_SECONDS = 300.0

Ask = tuple[str, tuple[tuple[str, str], ...]]


def ask(node: Mapping[str, Any]) -> Ask:
    """What of a node asks for a look: the annotation ``fdl.dev/probe-now``, and how many devices its kubelet offers.

    Devices are the resources with a domain in their name, such as ``nvidia.com/gpu``.
    """
    notes = node["metadata"].get("annotations") or {}
    capacity = (node.get("status") or {}).get("allocatable") or {}
    devices = sorted((name, str(amount)) for name, amount in capacity.items() if "/" in name)
    return notes.get(labels.PROBE_NOW, ""), tuple(devices)


def retry_seconds(failures: int) -> float:
    """Time to the next stream, in seconds: soon after one that ended in its time, ever later after failures."""
    return min(RETRY_FIRST_SECONDS * 2 ** min(failures - 1, 10), RETRY_LAST_SECONDS) if failures else 1.0


class NodeWatch:
    """Calls back with the node whenever it changes.

    Args:
        access: the API server.
        node: name of the own node.
        called: is called from another thread with the node, and whether it asks for a look.
    """

    def __init__(self, access: Access, node: str, called: Callable[[Mapping[str, Any], bool], object]) -> None:
        self._access = access
        self._called = called
        query = {
            "watch": "true",
            "resourceVersion": "0",  # from the server's memory
            "fieldSelector": f"metadata.name={node}",
            "timeoutSeconds": str(STREAM_SECONDS),
        }
        self._path = f"/api/v1/nodes?{urlencode(query)}"
        self._last: Ask | None = None
        self._stop = threading.Event()

    def start(self) -> None:
        """Begin, in a thread that ends with the process."""
        threading.Thread(target=self._run, name="node-watch", daemon=True).start()

    def stop(self) -> None:
        """Open no further stream; the one that is open ends with the process, or in its time."""
        self._stop.set()

    def take(self, event: Mapping[str, Any]) -> None:
        """Look at one event of the stream; the first one only says how things are.

        Raises:
            ValueError: the server ends the stream with an error.
        """
        if event.get("type") == "ERROR":
            raise ValueError(str(event.get("object", {}).get("message", "the server ended the watch")))
        if event.get("type") not in ("ADDED", "MODIFIED"):
            return
        now, before = ask(event["object"]), self._last
        self._last = now
        self._called(event["object"], before is not None and now != before)

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            try:
                for line in self._access.stream(self._path, SILENCE_SECONDS):
                    self.take(json.loads(line))
                    failures = 0
                    if self._stop.is_set():
                        return
            except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
                log.info("the watch of the node ended: %s: %s", type(error).__name__, error)
                failures += 1
            self._stop.wait(retry_seconds(failures))
