"""Requests to the API server: plain dictionaries in and out, over the transport of ``kubernetes.aio``.

The generated model classes are not used: they would parse and keep what the operator drops at once.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from fdl_api.labels import FIELD_MANAGER
from fdl_api.version import GROUP_VERSION, VERSION

APPLY: Final = "application/apply-patch+yaml"
JSON_PATCH: Final = "application/json-patch+json"
METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
METADATA_WATCH: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
MAX_RETRY_AFTER: Final = 30.0
PAGE: Final = 500


class ApiError(Exception):
    """The API server refused a request, or did not answer it.

    Attributes:
        status: HTTP status; 0 when there was no answer.
        reason: the server's machine-readable reason.
        message: the server's sentence.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object and where the API server keeps it."""

    group_version: str
    plural: str
    kind: str
    namespaced: bool = True

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """URL path of the collection or of one object; all namespaces when ``namespace`` is empty."""
        root = f"/api/{self.group_version}" if "/" not in self.group_version else f"/apis/{self.group_version}"
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        tail = "".join(f"/{part}" for part in (name, subresource) if part)
        return f"{root}{scope}/{self.plural}{tail}"


RUNS: Final = Resource(GROUP_VERSION, "fdlruns", "FdlRun")
CLUSTERS: Final = Resource(GROUP_VERSION, "fdlclusters", "FdlCluster", namespaced=False)
PODS: Final = Resource("v1", "pods", "Pod")
NODES: Final = Resource("v1", "nodes", "Node", namespaced=False)
SECRETS: Final = Resource("v1", "secrets", "Secret")
CONFIG_MAPS: Final = Resource("v1", "configmaps", "ConfigMap")
SERVICES: Final = Resource("v1", "services", "Service")
NETWORK_POLICIES: Final = Resource("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy")
DISRUPTION_BUDGETS: Final = Resource("policy/v1", "poddisruptionbudgets", "PodDisruptionBudget")
LEASES: Final = Resource("coordination.k8s.io/v1", "leases", "Lease")
EVENTS: Final = Resource("events.k8s.io/v1", "events", "Event")


class Throttle:
    """A token bucket: ``rate`` requests a second on average, ``burst`` at once."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._tokens = burst
        self._at = clock()

    def delay(self) -> float:
        """Take one token, and say how many seconds to wait before using it."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        self._tokens -= 1
        return 0.0 if self._tokens >= 0 else -self._tokens / self._rate

    def available(self) -> bool:
        """Whether a token could be used now; takes none."""
        return self._tokens + (self._clock() - self._at) * self._rate >= 1


class Client:
    """The operator's one connection pool to the API server."""

    def __init__(self, api: ApiClient, throttle: Throttle) -> None:
        self._api = api
        self._throttle = throttle
        self.calls: Counter[tuple[str, str]] = Counter()
        """Requests so far, by verb and resource (watches and Lease renewals included)."""

    @property
    def configuration(self) -> Configuration:
        """Where the API server is and how to log in; kopf logs in with the same."""
        configuration: Configuration = self._api.configuration
        return configuration

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()  # type: ignore[no-untyped-call]

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        """One object."""
        return await self._json("GET", resource, resource.path(namespace, name))

    async def create(
        self, resource: Resource, namespace: str, body: dict[str, Any], *, dry_run: bool = False
    ) -> dict[str, Any]:
        """Create an object by POST.

        Raises:
            ApiError: 409 when an object of this name exists.
        """
        query = [("fieldManager", FIELD_MANAGER)]
        if dry_run:
            query += [("dryRun", "All"), ("fieldValidation", "Strict")]
        return await self._json("POST", resource, resource.path(namespace), query=query, body=body)

    async def apply(
        self, resource: Resource, namespace: str, body: dict[str, Any], *, subresource: str = ""
    ) -> dict[str, Any]:
        """Server-side apply with the operator's field manager. A resourceVersion in the body is an optimistic lock."""
        path = resource.path(namespace, body["metadata"]["name"], subresource)
        query = [("fieldManager", FIELD_MANAGER), ("force", "true")]
        return await self._json("PATCH", resource, path, query=query, body=body, content_type=APPLY)

    async def patch(
        self, resource: Resource, namespace: str, name: str, operations: list[dict[str, object]]
    ) -> dict[str, Any]:
        """Change an object by a JSON patch (RFC 6902).

        Raises:
            ApiError: 422 when one of its tests does not hold.
        """
        path = resource.path(namespace, name)
        query = [("fieldManager", FIELD_MANAGER)]
        return await self._json("PATCH", resource, path, query=query, body=operations, content_type=JSON_PATCH)

    async def replace(self, resource: Resource, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        """Replace an object by PUT; the body's resourceVersion is an optimistic lock."""
        path = resource.path(namespace, body["metadata"]["name"])
        return await self._json("PUT", resource, path, query=[("fieldManager", FIELD_MANAGER)], body=body)

    async def delete(self, resource: Resource, namespace: str, name: str, *, uid: str) -> bool:
        """Delete exactly the object with this UID; False when it is gone already."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        try:
            await self._json("DELETE", resource, resource.path(namespace, name), body=body)
        except ApiError as error:
            if error.status in (404, 409):
                return False
            raise
        return True

    async def pages(
        self, resource: Resource, namespace: str, selector: str, *, metadata_only: bool = False
    ) -> AsyncIterator[tuple[list[dict[str, Any]], str]]:
        """List a collection page by page: items and the list's resourceVersion."""
        token = ""
        while True:
            query = [("limit", str(PAGE))]
            if selector:
                query.append(("labelSelector", selector))
            if token:
                query.append(("continue", token))
            accept = METADATA_ONLY if metadata_only else "application/json"
            body = await self._json("GET", resource, resource.path(namespace), query=query, accept=accept, verb="LIST")
            meta = body.get("metadata") or {}
            yield body.get("items") or [], meta.get("resourceVersion", "")
            token = meta.get("continue") or ""
            if not token:
                return

    async def watch(
        self,
        resource: Resource,
        namespace: str,
        selector: str,
        version: str,
        *,
        seconds: int,
        metadata_only: bool = False,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Events of a collection from a resourceVersion on, bookmarks included, until the server ends the watch.

        Raises:
            ApiError: also for an ERROR event (410 when the version is too old).
        """
        query = [
            ("watch", "true"),
            ("resourceVersion", version),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", str(seconds)),
        ]
        if selector:
            query.append(("labelSelector", selector))
        accept = METADATA_WATCH if metadata_only else "application/json"
        self.calls["WATCH", resource.plural] += 1
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=seconds + 30)
        response = await self._send("GET", resource.path(namespace), query, None, "application/json", accept, timeout)
        try:
            if response.status >= 300:
                raise _error(response.status, await response.read())
            while line := await _line(response):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise ApiError(int(status.get("code", 0)), status.get("reason", ""), status.get("message", ""))
                yield event
        finally:
            response.close()

    async def _json(
        self,
        method: str,
        resource: Resource,
        path: str,
        *,
        query: list[tuple[str, str]] | None = None,
        body: dict[str, Any] | list[dict[str, object]] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        verb: str = "",
    ) -> dict[str, Any]:
        # The Lease never queues behind a burst of other requests: that would lose it just when there is much to do.
        delay = 0.0 if resource is LEASES else self._throttle.delay()
        if delay > 0:
            await asyncio.sleep(delay)
        timeout = aiohttp.ClientTimeout(total=30, sock_connect=10)
        for last in (False, False, True):
            self.calls[verb or method, resource.plural] += 1
            response = await self._send(method, path, query or [], body, content_type, accept, timeout)
            try:
                raw = await response.read()
            except (aiohttp.ClientError, TimeoutError) as error:
                raise ApiError(0, "NoAnswer", f"{method} {path}: {error or type(error).__name__}") from error
            if response.status == 429 and not last and (wait := response.headers.get("Retry-After")):
                await asyncio.sleep(min(float(wait), MAX_RETRY_AFTER))
                continue
            break
        if response.status >= 300:
            raise _error(response.status, raw)
        result: dict[str, Any] = json.loads(raw) if raw else {}
        return result

    async def _send(  # noqa: PLR0917 - private, one call site each for requests and watches
        self,
        method: str,
        path: str,
        query: list[tuple[str, str]],
        body: dict[str, Any] | list[dict[str, object]] | None,
        content_type: str,
        accept: str,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - of the transport, not of this function
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": accept, "Content-Type": content_type}
        parts = await self._api.param_serialize(
            method, path, query_params=query, header_params=headers, body=body, auth_settings=["BearerToken"]
        )
        try:
            answer = await self._api.call_api(*parts, _request_timeout=timeout)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(0, "NoAnswer", f"{method} {path}: {error or type(error).__name__}") from error
        response: aiohttp.ClientResponse = answer.response
        return response


async def _line(response: aiohttp.ClientResponse) -> bytes:
    try:
        return await response.content.readline()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ApiError(0, "NoAnswer", f"the watch broke: {error or type(error).__name__}") from error


def _error(status: int, raw: bytes) -> ApiError:
    try:
        body = json.loads(raw)
        return ApiError(status, str(body.get("reason") or ""), str(body.get("message") or ""))
    except (ValueError, AttributeError):
        return ApiError(status, "", raw[:500].decode(errors="replace"))


async def connect(*, qps: float = 100.0, burst: int = 200, kubeconfig: str | None = None) -> Client:
    """A client for the cluster that this process runs in, else for the one of a kubeconfig.

    Args:
        qps: requests a second, on average.
        burst: requests at once.
        kubeconfig: file to use instead; the usual places when ``None``.
    """
    configuration = Configuration()
    configuration.connection_pool_maxsize = 256
    try:
        if kubeconfig is not None:
            raise ConfigException
        load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except ConfigException:
        await load_kube_config(config_file=kubeconfig, client_configuration=configuration)  # type: ignore[no-untyped-call]
    transport = ApiClient(configuration=configuration)
    transport.user_agent = f"fdl-operator/{VERSION}"  # the transport's own would win over a request's header
    return Client(transport, Throttle(qps, burst))
