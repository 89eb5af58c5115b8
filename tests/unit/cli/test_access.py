"""Sentences for everything that is in the way of reading a cluster."""

import socket
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from fdl_cli import access
from fdl_cli.access import AccessError, connect
from fdl_cli.main import main


def kubeconfig(folder: Path, port: int = 9, name: str = "far") -> str:
    path = folder / "config"
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": name,
                "clusters": [{"name": "c", "cluster": {"server": f"https://127.0.0.1:{port}"}}],
                "users": [{"name": "u", "user": {"token": "x"}}],
                "contexts": [{"name": name, "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
            }
        )
    )
    return str(path)


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


def test_without_a_kubeconfig_it_says_how_to_get_a_cluster() -> None:
    with pytest.raises(AccessError, match=r"KUBECONFIG is not set .* 'fdl local up' starts a cluster"):
        connect()


def test_a_kubeconfig_that_is_not_there_or_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="there is no kubeconfig /nowhere"):
        connect("/nowhere")
    (tmp_path / "bad").write_text("a: [")
    with pytest.raises(AccessError, match="the kubeconfig cannot be used: "):
        connect(str(tmp_path / "bad"))


@pytest.mark.parametrize(
    "text",
    [
        "x\n",
        "- 1\n",
        "contexts: 3\ncurrent-context: a\n",
        "contexts: [3]\ncurrent-context: a\n",
        "contexts: [{name: a, context: x}]\ncurrent-context: a\n",
        "kind: Config\nclusters: x\ncontexts: [{name: a, context: {cluster: c, user: u}}]\ncurrent-context: a\n",
    ],
)
def test_yaml_that_is_no_kubeconfig_is_told_so(tmp_path: Path, text: str) -> None:
    (tmp_path / "other").write_text(text)
    with pytest.raises(AccessError, match=r"the kubeconfig cannot be used: .*check --kubeconfig"):
        connect(str(tmp_path / "other"))


def test_an_unknown_context_names_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match=r"has no context 'x' \(it has: far\)"):
        connect(kubeconfig(tmp_path), "x")


def test_the_contexts_namespace_is_the_default_one(tmp_path: Path) -> None:
    found = connect(kubeconfig(tmp_path), "far")
    assert (found.name, found.namespace) == ("far", "team")


@pytest.mark.parametrize("command", [["probe"], ["explain", "run", "r"], ["explain", "node", "n"]])
def test_a_cluster_that_does_not_answer_is_an_error_in_a_sentence(command: list[str], tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens: connections are refused
        path = kubeconfig(tmp_path, taken.getsockname()[1])
        done = CliRunner().invoke(main, [*command, "--kubeconfig", path])
    assert done.exit_code == 1
    assert done.output.startswith("Error: cluster 'far' (https://127.0.0.1:")
    assert "does not answer: " in done.output and "Connection refused" in done.output
    assert "HTTPSConnection" not in done.output and len(done.output.splitlines()) == 1


def test_a_path_of_runs() -> None:
    assert access.runs() == "/apis/fdl.dev/v1alpha1/fdlruns"
    assert access.runs("ns", "r") == "/apis/fdl.dev/v1alpha1/namespaces/ns/fdlruns/r"
