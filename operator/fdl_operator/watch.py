"""List and watch one collection for ever, projecting each object to a slim record while it is parsed."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from fdl_operator.client import ApiError, Client, Resource

R = TypeVar("R")
logger = logging.getLogger(__name__)

WATCH_SECONDS = 300


class Watch(Generic[R]):
    """Keeps ``put`` and ``drop`` informed about a collection.

    After a gap (a watch that ended with an error, a version that is too old) the collection is listed again, and what
    is missing in the list is dropped, so that no deletion is ever lost.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        *,
        selector: str,
        namespace: str = "",
        project: Callable[[dict[str, Any]], R],
        put: Callable[[str, R], None],
        drop: Callable[[str], None],
        metadata_only: bool = False,
    ) -> None:
        self._client = client
        self._resource = resource
        self._selector = selector
        self._namespace = namespace
        self._project = project
        self._put = put
        self._drop = drop
        self._metadata_only = metadata_only
        self._known: set[str] = set()
        self.synced = asyncio.Event()
        """Set once the first list is complete."""

    async def run(self) -> None:
        """Watch until cancelled."""
        failures = 0
        while True:
            try:
                version = await self._list()
                self.synced.set()
                failures = 0
                while True:
                    version = await self._follow(version)
            except ApiError as error:
                if error.status != 410:
                    failures += 1
                    logger.warning("watch of %s: %s", self._resource.plural, error)
            except (OSError, ValueError, TimeoutError) as error:
                failures += 1
                logger.warning("watch of %s: %s", self._resource.plural, error or type(error).__name__)
            await asyncio.sleep(min(0.2 * 2 ** min(failures, 8), 30.0) * (0.5 + random.random()))  # noqa: S311 - jitter

    async def _list(self) -> str:
        found: set[str] = set()
        version = ""
        async for items, version in self._client.pages(  # noqa: B007 - the last page's version is wanted
            self._resource, self._namespace, self._selector, metadata_only=self._metadata_only
        ):
            for item in items:
                key = _key(item)
                found.add(key)
                self._put(key, self._project(item))
        for key in self._known - found:
            self._drop(key)
        self._known = found
        return version

    async def _follow(self, version: str) -> str:
        """Follow one watch to its end; the newest version seen."""
        events = self._client.watch(
            self._resource,
            self._namespace,
            self._selector,
            version,
            seconds=WATCH_SECONDS,
            metadata_only=self._metadata_only,
        )
        async with contextlib.aclosing(events):
            async for event in events:
                item = event["object"]
                version = item["metadata"]["resourceVersion"]
                if event["type"] == "BOOKMARK":
                    continue
                key = _key(item)
                if event["type"] == "DELETED":
                    self._known.discard(key)
                    self._drop(key)
                else:
                    self._known.add(key)
                    self._put(key, self._project(item))
        return version


def _key(item: dict[str, Any]) -> str:
    metadata = item["metadata"]
    return f"{metadata.get('namespace', '')}/{metadata['name']}"
