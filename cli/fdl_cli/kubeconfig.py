"""Access by kubeconfig or service account; apart from :mod:`fdl_cli.access`, which loads without the client."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import urllib3
import yaml
from kubernetes import client, config
from kubernetes.config.config_exception import ConfigException

from fdl_cli.access import Access, AccessError, root_cause

# The client's loaders have no types.
_in_cluster: Final[Callable[..., None]] = config.load_incluster_config
_contexts: Final[Callable[..., Any]] = config.list_kube_config_contexts
_load: Final[Callable[..., None]] = config.load_kube_config


def connect(kubeconfig: str = "", context: str = "") -> Access:
    """See :func:`fdl_cli.access.connect`.

    Raises:
        AccessError: there is neither kubeconfig nor service account, or the kubeconfig cannot be used.
    """
    settings = client.Configuration()
    settings.retries = urllib3.Retry(connect=1, read=1, redirect=0, status=0)
    try:
        if not kubeconfig and not _has_kubeconfig() and "KUBERNETES_SERVICE_HOST" in os.environ:
            _in_cluster(client_configuration=settings)
            return Access(client.ApiClient(settings), "in-cluster", "default")
        if not kubeconfig and not _has_kubeconfig():
            raise AccessError(
                "no cluster to look at: KUBECONFIG is not set and there is no ~/.kube/config; 'fdl local up' starts a "
                "cluster and 'fdl local kubeconfig' shows the way into it; 'fdl probe --local' looks at this machine"
            )
        if kubeconfig and not Path(kubeconfig).is_file():
            raise AccessError(f"there is no kubeconfig {kubeconfig}; check --kubeconfig")
        known, active = _contexts(config_file=kubeconfig or None)
        chosen = next((each for each in known if each["name"] == context), None) if context else active
        if chosen is None:
            names = ", ".join(sorted(each["name"] for each in known)) or "none"
            raise AccessError(f"the kubeconfig has no context {context!r} (it has: {names})")
        _load(kubeconfig or None, context or None, settings, persist_config=False)
    except (ConfigException, OSError, ValueError, yaml.YAMLError) as error:
        raise AccessError(
            f"the kubeconfig cannot be used: {root_cause(error)}; check --kubeconfig and KUBECONFIG"
        ) from error
    except (TypeError, AttributeError, KeyError) as error:  # what the client meets in YAML that is something else
        raise AccessError(
            "the kubeconfig cannot be used: it is YAML and no kubeconfig (kind: Config, with clusters, users and "
            "contexts); check --kubeconfig and KUBECONFIG"
        ) from error
    namespace = str((chosen.get("context") or {}).get("namespace") or "default")
    return Access(client.ApiClient(settings), str(chosen["name"]), namespace)


def _has_kubeconfig() -> bool:
    named = os.environ.get("KUBECONFIG", "")
    paths = [Path(part) for part in named.split(os.pathsep) if part] if named else [Path.home() / ".kube" / "config"]
    return any(path.is_file() for path in paths)
