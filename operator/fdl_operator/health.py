"""The operator's own health: GET /healthz for the kubelet, GET /readyz for people and the chart's test."""

from collections.abc import Callable

from aiohttp import web


class Health:
    """A small HTTP server. ``problem`` says what is wrong, or nothing; ``leading`` whether this operator acts."""

    def __init__(self, port: int, problem: Callable[[], str], leading: Callable[[], bool]) -> None:
        self._port = port
        self._problem = problem
        self._leading = leading
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen on all addresses."""
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, port=self._port).start()

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, request: web.Request) -> web.Response:
        del request
        problem = self._problem()
        return web.Response(status=500 if problem else 200, text=(problem or "ok") + "\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        del request
        return web.Response(text="leading\n" if self._leading() else "standing by\n")
