"""Secret, ConfigMap, Service, NetworkPolicy and PodDisruptionBudget of a run."""

import base64

from fdl_api import labels, names
from fdl_api.run import FdlRunSpec
from fdl_api.runconfig import RunConfig
from fdl_operator.build.common import Body, metadata, selector
from fdl_operator.build.pki import KeyMaterial
from fdl_operator.model import RunRecord


def secret(run: RunRecord, keys: KeyMaterial) -> Body:
    """The run token and the coordinator's certificate. Immutable: keys never change under live members."""
    content = {"token": keys.token, "ca.crt": keys.ca, "tls.crt": keys.certificate, "tls.key": keys.key}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(run, names.secret(run.name)),
        "type": "Opaque",
        "immutable": True,
        "data": {name: base64.b64encode(text.encode()).decode() for name, text in content.items()},
    }


def keys_of(body: Body) -> KeyMaterial:
    """The keys in a Secret that :func:`secret` made."""
    data = {name: base64.b64decode(text).decode() for name, text in (body.get("data") or {}).items()}
    return KeyMaterial(token=data["token"], ca=data["ca.crt"], certificate=data["tls.crt"], key=data["tls.key"])


def config_map(run: RunRecord, config: RunConfig, spec_hash: str) -> Body:
    """The resolved run."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(run, names.config_map(run.name), spec_hash=spec_hash),
        "data": {"run.json": config.model_dump_json(by_alias=True, indent=1)},
    }


def service(run: RunRecord, incarnation: int, spec_hash: str) -> Body:
    """The coordinator's stable name; it selects one incarnation, so that a lost one gets no traffic."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(run, names.coordinator_service(run.name), spec_hash=spec_hash),
        "spec": {
            "type": "ClusterIP",
            "publishNotReadyAddresses": True,
            "selector": selector(run, **{labels.ROLE: labels.ROLE_COORDINATOR, labels.INCARNATION: str(incarnation)}),
            "ports": [
                {
                    "name": "wire",
                    "port": names.COORDINATOR_PORT,
                    "targetPort": names.COORDINATOR_PORT,
                    "protocol": "TCP",
                }
            ],
        },
    }


def network_policy(run: RunRecord, spec: FdlRunSpec, operator_namespace: str, spec_hash: str) -> Body:
    """Who may reach the run's pods: each other, and the operator (the coordinator's port only).

    ``strict`` limits what the pods may reach, too: each other and the cluster's DNS.
    """
    own_pods = {"podSelector": {"matchLabels": selector(run)}}
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": operator_namespace}},
        "podSelector": {"matchLabels": {labels.ROLE: labels.ROLE_OPERATOR}},
    }
    body: Body = {
        "podSelector": {"matchLabels": selector(run)},
        "policyTypes": ["Ingress"],
        "ingress": [
            {"from": [own_pods]},
            {"from": [operator], "ports": [{"port": names.COORDINATOR_PORT, "protocol": "TCP"}]},
        ],
    }
    if spec.network.policy == "strict":
        dns = [{"port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
        body["policyTypes"] = ["Ingress", "Egress"]
        body["egress"] = [{"to": [own_pods]}, {"to": [{"namespaceSelector": {}}], "ports": dns}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(run, names.network_policy(run.name), spec_hash=spec_hash),
        "spec": body,
    }


def disruption_budget(run: RunRecord, min_members: int, spec_hash: str) -> Body:
    """Keeps voluntary disruptions (drains) from taking the run below its minimum of members."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(run, names.disruption_budget(run.name), spec_hash=spec_hash),
        "spec": {
            "minAvailable": min_members,
            "selector": {"matchLabels": selector(run, **{labels.ROLE: labels.ROLE_MEMBER})},
        },
    }
