"""Leader election by a Lease: one operator acts, the others stand by (case F3).

The figures are those of the Kubernetes controllers: a Lease is good for 15 s, its holder renews it every 2 s and gives
up when it could not for 10 s. A Lease counts as expired when *this* process has not seen it change for its duration:
clocks of other machines are never compared.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fdl_operator import clock
from fdl_operator.client import LEASES, ApiError, Client

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds: how long a Lease is good, when its holder gives up, and the pause between two tries."""

    lease: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0


class Election:
    """One candidate for one Lease."""

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        identity: str,
        timing: Timing | None = None,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._timing = timing or Timing()
        self._wall = wall
        self._monotonic = monotonic
        self._seen: tuple[str, float] | None = None
        """resourceVersion of the Lease as last seen, and when it was first seen so."""
        self._renewed_at = 0.0

    @property
    def renewed_ago(self) -> float:
        """Seconds since the Lease was last renewed by us."""
        return self._monotonic() - self._renewed_at

    async def acquire(self) -> None:
        """Return once this candidate holds the Lease."""
        while not await self._try():  # noqa: ASYNC110 - the Lease is changed by other processes
            await asyncio.sleep(self._timing.retry)
        logger.info("%s leads", self._identity)

    async def hold(self) -> None:
        """Renew the Lease; return when it is lost. The caller must stop acting at once."""
        while True:
            await asyncio.sleep(self._timing.retry)
            left = self._timing.renew_deadline - self.renewed_ago
            if left <= 0:
                logger.error("the Lease could not be renewed for %.0f s", self._timing.renew_deadline)
                return
            try:
                mine = await asyncio.wait_for(self._try(), left)
            except TimeoutError:
                continue
            if not mine and self._taken:
                logger.error("another operator holds the Lease")
                return

    async def release(self) -> None:
        """Give the Lease up, so that another candidate need not wait for it to expire."""
        try:
            lease = await self._client.get(LEASES, self._namespace, self._name)
            if lease["spec"].get("holderIdentity") != self._identity:
                return
            lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
            await self._client.replace(LEASES, self._namespace, lease)
        except ApiError as error:
            logger.info("the Lease could not be released: %s", error)

    _taken: bool = False

    async def _try(self) -> bool:
        """Create, take over or renew the Lease once."""
        self._taken = False
        started = self._monotonic()
        try:
            lease = await self._client.get(LEASES, self._namespace, self._name)
        except ApiError as error:
            if error.status != 404:
                logger.warning("the Lease cannot be read: %s", error)
                return False
            return await self._write(self._client.create, self._body(None), started)
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        version = lease["metadata"]["resourceVersion"]
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, self._monotonic())
        if holder not in ("", self._identity):
            good_for = float(spec.get("leaseDurationSeconds") or self._timing.lease)
            if self._monotonic() - self._seen[1] < good_for:
                self._taken = True
                return False
        return await self._write(self._client.replace, self._body(lease), started)

    async def _write(self, send: Callable[..., Any], body: dict[str, Any], started: float) -> bool:
        try:
            lease = await send(LEASES, self._namespace, body)
        except ApiError as error:
            if error.status != 409:
                logger.warning("the Lease cannot be written: %s", error)
            return False
        self._seen = (lease["metadata"]["resourceVersion"], self._monotonic())
        # Counted from before the request: nobody else may think that it is good for longer.
        self._renewed_at = started
        return True

    def _body(self, lease: dict[str, Any] | None) -> dict[str, Any]:
        now = clock.render_micro(self._wall())
        spec: dict[str, Any] = dict((lease or {}).get("spec") or {})
        if spec.get("holderIdentity") != self._identity:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + (1 if lease else 0)
        spec |= {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(self._timing.lease),
            "renewTime": now,
        }
        metadata = {"name": self._name, "namespace": self._namespace}
        if lease is not None:
            metadata["resourceVersion"] = lease["metadata"]["resourceVersion"]
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
