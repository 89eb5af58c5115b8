"""Reads a cluster as the person who calls: by kubeconfig, with sentences for everything that can be in the way.

Plain dictionaries, no model classes: what is read is projected at once by :mod:`fdl_api`.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote

import click

from fdl_api.version import GROUP, GROUP_VERSION

CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 30.0
PAGE: Final = 500
CLUSTER: Final = f"/apis/{GROUP_VERSION}/fdlclusters/default"
INSTALL: Final = "install fdl's chart: helm install fdl charts/fdl --namespace fdl-system --create-namespace"

F = TypeVar("F", bound=Callable[..., Any])


class AccessError(Exception):
    """The cluster could not be read; the text says why and what to do."""


class NotInstalledError(AccessError):
    """The cluster does not know fdl's resources."""


class ForbiddenError(AccessError):
    """The person may not read this."""


def access_options(command: F) -> F:
    """The two options of all commands that read a cluster."""
    for option in (
        click.option("--context", default="", help="Context of the kubeconfig. [default: its current one]"),
        click.option("--kubeconfig", default="", help="The kubeconfig. [default: KUBECONFIG, else ~/.kube/config]"),
    ):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class Access:
    """A cluster that can be asked.

    Attributes:
        api: client with the person's credentials.
        name: the context, for sentences.
        namespace: the context's namespace.
    """

    api: Any
    name: str
    namespace: str

    @property
    def where(self) -> str:
        """The cluster in a sentence."""
        return f"cluster {self.name!r} ({self.api.configuration.host})"

    def get(self, path: str, **query: str) -> dict[str, Any] | None:
        """One object or page; ``None`` when there is no such object.

        Raises:
            AccessError: no answer, or a refusal.
        """
        from kubernetes.client.exceptions import ApiException  # noqa: PLC0415 - see connect()
        from urllib3.exceptions import HTTPError  # noqa: PLC0415 - it comes with the client

        try:
            request = self.api.param_serialize(
                "GET",
                path,
                query_params=list(query.items()),
                header_params={"Accept": "application/json"},
                auth_settings=["BearerToken"],
            )
            answer = self.api.call_api(*request, _request_timeout=(CONNECT_SECONDS, ANSWER_SECONDS))
            text, status = answer.read(), int(answer.status)
        except ApiException as error:
            text, status = error.body or b"", int(error.status or 0)
        except (HTTPError, OSError) as error:
            raise AccessError(self._no_answer(error)) from error
        body = _parsed(text)
        if status == 200 and body is not None:
            return body
        if (
            status == 404
            and body is not None
            and body.get("reason") == "NotFound"
            and body.get("details", {}).get("name")
        ):
            return None
        raise self._refusal(path, status, body)

    def items(self, path: str, **query: str) -> list[dict[str, Any]]:
        """All objects of a list, page by page.

        Raises:
            AccessError: no answer, or a refusal.
        """
        found: list[dict[str, Any]] = []
        more = ""
        while True:
            page = self.get(path, limit=str(PAGE), **({"continue": more} if more else {}), **query) or {}
            found += page.get("items") or []
            more = str((page.get("metadata") or {}).get("continue") or "")
            if not more:
                return found

    def _no_answer(self, error: Exception) -> str:
        return (
            f"{self.where} does not answer: {root_cause(error)}; check the network and that the cluster runs "
            "('fdl local up' starts a local one), or choose another one with --context"
        )

    def _refusal(self, path: str, status: int, body: dict[str, Any] | None) -> AccessError:
        said = str((body or {}).get("message") or "").strip() or f"status {status}"
        if status == 404 and f"/{GROUP}/" in path:
            return NotInstalledError(
                f"fdl is not installed in {self.where}: it has no FdlRun and no FdlCluster; {INSTALL}"
            )
        if status == 401:
            return AccessError(f"{self.where} does not know you ({said}); renew the credentials of your kubeconfig")
        if status == 403:
            return ForbiddenError(f"{self.where} does not let you read this: {said}; ask for a role that may")
        return AccessError(f"{self.where} could not answer {path}: {said}")


def runs(namespace: str = "", name: str = "") -> str:
    """Path of a run, of all runs of a namespace, or of all."""
    scope = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    return f"/apis/{GROUP_VERSION}{scope}/fdlruns" + (f"/{quote(name, safe='')}" if name else "")


def node(name: str) -> str:
    """Path of a node."""
    return f"/api/v1/nodes/{quote(name, safe='')}"


def connect(kubeconfig: str = "", context: str = "") -> Access:
    """Access by the person's kubeconfig, or by the pod's service account where there is none.

    Raises:
        AccessError: there is neither, or the kubeconfig cannot be used.
    """
    # Commands that ask no cluster (fdl probe --local) do without the client: it takes a while to load.
    from fdl_cli import kubeconfig as by_file  # noqa: PLC0415

    return by_file.connect(kubeconfig, context)


def _parsed(text: str | bytes) -> dict[str, Any] | None:
    try:
        body = json.loads(text)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def root_cause(error: BaseException) -> str:
    """The innermost reason: urllib3 wraps what matters in what does not."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        return root_cause(reason)
    text = " ".join(str(error).split())
    text = re.sub(r"^(<.*?>|\w+\(.*?\)): ", "", text).partition("(Caused by")[0].strip()
    return text.removeprefix("Invalid kube-config file. ").rstrip(".") or type(error).__name__
