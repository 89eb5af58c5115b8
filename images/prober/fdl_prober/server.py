"""The few calls to the API server that a prober makes."""

import http.client
import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlencode

from fdl_api import labels, reading
from fdl_api.cluster_nodes import ProbedSpec, mark
from fdl_prober.access import Access
from fdl_prober.bounded import Bounded, StuckError

log = logging.getLogger("fdl_prober")

TIMEOUT_SECONDS = 20.0
_CLUSTER = "/apis/fdl.dev/v1alpha1/fdlclusters/default"
_METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_APPLY = "application/apply-patch+yaml"  # JSON is YAML


class ServerError(RuntimeError):
    """The API server did not do what it was asked for; the text says what and why."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status

    @property
    def refused(self) -> bool:
        """Whether the server answered with a no, rather than not at all or with a fault of its own."""
        return 400 <= self.status < 500


def clock_offset(date: str | None, sent: datetime, received: datetime) -> float | None:
    """This clock minus the server's, in seconds, from an answer's Date header.

    The server's time is taken to be the middle of the whole second that it names, ours the middle of the round trip.
    """
    if not date:
        return None
    try:
        told = parsedate_to_datetime(date)
    except ValueError:
        return None
    middle = sent + (received - sent) / 2
    return (middle - told).total_seconds() - 0.5


class Server:
    """The API server as a prober sees it: its own node, the FdlCluster, the deep-check pods of its node."""

    def __init__(self, access: Access, node: str, namespace: str) -> None:
        self._access = access
        self._bounded = Bounded()
        self._node = node
        self._namespace = namespace
        self.clock_offset_seconds: float | None = None
        """Newest measured offset of this node's clock, in seconds."""

    async def _call(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: object = None, **headers: str
    ) -> dict[str, Any]:
        asked = path + (f"?{urlencode(query)}" if query else "")
        sent_headers = {"Accept": "application/json"} | {key.replace("_", "-"): value for key, value in headers.items()}
        content = None if body is None else json.dumps(body).encode()
        sent = datetime.now(UTC)
        try:
            answer = await self._bounded.run(
                "call", TIMEOUT_SECONDS, self._access.call, method, asked, sent_headers, content, TIMEOUT_SECONDS
            )
        except (OSError, http.client.HTTPException, StuckError) as error:
            raise ServerError(f"{method} {path}: {type(error).__name__}: {error}", 0) from error
        offset = clock_offset(answer.date, sent, datetime.now(UTC))
        self.clock_offset_seconds = self.clock_offset_seconds if offset is None else offset
        if answer.status >= 300:
            raise ServerError(f"{method} {path}: {answer.status}: {_sentence(answer.content)}", answer.status)
        try:
            parsed: dict[str, Any] = json.loads(answer.content)
        except ValueError as error:
            raise ServerError(f"{method} {path}: the answer is no JSON: {error}", 0) from error
        return parsed

    async def node(self) -> dict[str, Any]:
        """The own node.

        Raises:
            ServerError: it cannot be read.
        """
        return await self._call("GET", f"/api/v1/nodes/{self._node}")

    async def apply(self, body: object) -> dict[str, Any]:
        """Write the own labels and annotation; other keys and other writers' fields stay as they are.

        Raises:
            ServerError: the server refuses, e.g. the admission policy.
        """
        query = {"fieldManager": labels.PROBER_FIELD_MANAGER, "force": "true"}
        return await self._call("PATCH", f"/api/v1/nodes/{self._node}", query, body, Content_Type=_APPLY)

    async def cluster_version(self) -> str | None:
        """What only another spec of FdlCluster/default changes; ``None`` where there is none.

        Its uid and generation: one that was deleted and made anew begins to count again.

        Asks for metadata alone: the status lists every node of the cluster, and every node asks.

        Raises:
            ServerError: it cannot be read.
        """
        try:
            found = await self._call("GET", _CLUSTER, Accept=_METADATA_ONLY)
        except ServerError as error:
            if error.status == 404:
                return None
            raise
        return f"{found['metadata']['uid']}/{found['metadata']['generation']}"

    async def cluster(self) -> tuple[ProbedSpec, str]:
        """What the spec of FdlCluster/default says about nodes, as far as this prober understands it, and its mark
        (:func:`~fdl_api.cluster_nodes.mark`).

        Raises:
            ServerError: it cannot be read.
        """
        spec = (await self._call("GET", _CLUSTER)).get("spec") or {}
        found = reading.lenient(ProbedSpec, spec)
        if found.left_out:
            log.warning("FdlCluster/default: this release does not know spec.%s", ", spec.".join(found.left_out))
        return found.value, mark(spec)

    async def deep_pods(self) -> list[dict[str, Any]]:
        """Deep-check pods on the own node.

        Raises:
            ServerError: they cannot be listed.
        """
        query = {
            "labelSelector": f"{labels.ROLE}={labels.ROLE_DEEP_CHECK}",
            "fieldSelector": f"spec.nodeName={self._node}",
        }
        found = await self._call("GET", f"/api/v1/namespaces/{self._namespace}/pods", query)
        items: list[dict[str, Any]] = found.get("items", [])
        return items


def _sentence(content: bytes) -> str:
    try:
        return str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        return content.decode(errors="replace")[:200]
