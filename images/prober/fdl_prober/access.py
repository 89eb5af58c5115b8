"""Calls to the API server with the standard library alone.

The prober runs on every node and makes a call now and then: the official client would cost it more memory than
everything else that it does.
"""

import http
import http.client
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class AccessError(RuntimeError):
    """This process is in no pod with a service account; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server answered.

    Attributes:
        status: HTTP status.
        date: its Date header; empty when there is none.
        content: the body.
    """

    status: int
    date: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Access:
    """Where the API server is and how it is asked.

    Attributes:
        url: e.g. ``https://10.96.0.1:443``.
        ca_file: certificates that its own is checked by.
        token_file: the service account's token; the kubelet renews it, so it is read for each call.
    """

    url: str
    ca_file: Path
    token_file: Path

    def call(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, timeout_seconds: float
    ) -> Answer:
        """Make one call on a connection of its own.

        Args:
            method: HTTP method.
            path: path with its query.
            headers: besides the authorization.
            body: of the request.
            timeout_seconds: limit of each step: connecting, sending, each read.

        Raises:
            OSError: the server does not answer, or is not who it should be; or a file of the account is missing.
            http.client.HTTPException: it answers something that is not HTTP.
        """
        connection = self._connect(timeout_seconds)
        try:
            connection.request(method, path, body, dict(headers) | self._authorization())
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers.get("Date", ""), answer.read())
        finally:
            connection.close()

    def stream(self, path: str, silence_seconds: float) -> Iterator[bytes]:
        """Lines of an answer that goes on, as they come.

        Args:
            path: path with its query.
            silence_seconds: time without a line after which the connection counts as dead.

        Raises:
            OSError: the server does not answer or the connection broke.
            http.client.HTTPException: the server refuses, or answers something that is not HTTP.
        """
        connection = self._connect(silence_seconds)
        try:
            connection.request("GET", path, headers={"Accept": "application/json"} | self._authorization())
            answer = connection.getresponse()
            if answer.status != http.HTTPStatus.OK:
                raise http.client.HTTPException(f"GET {path}: {answer.status} {answer.reason}")
            yield from answer
        finally:
            connection.close()

    def _connect(self, timeout_seconds: float) -> http.client.HTTPSConnection:
        where = urlsplit(self.url)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts the cluster's own certificates and no others
        context.load_verify_locations(self.ca_file)
        return http.client.HTTPSConnection(where.hostname or "", where.port, timeout=timeout_seconds, context=context)

    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token_file.read_text().strip()}"}


def in_cluster(env: Mapping[str, str], account: Path = ACCOUNT) -> Access:
    """Access as a pod has it.

    Raises:
        AccessError: the environment does not name a server, or the account's files are missing.
    """
    host, port = env.get("KUBERNETES_SERVICE_HOST", ""), env.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise AccessError(
            "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: this is no pod. On a machine outside of "
            "a cluster run python -m fdl_prober --local."
        )
    found = Access(
        url=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        ca_file=account / "ca.crt",
        token_file=account / "token",
    )
    for file in (found.ca_file, found.token_file):
        if not file.exists():
            raise AccessError(f"{file} is missing: the pod needs automountServiceAccountToken and a service account.")
    return found
