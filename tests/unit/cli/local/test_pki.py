"""Certificates."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fdl_cli.local import pki


def read(folder: Path, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / f"{name}.crt").read_bytes())


def test_addresses_and_names_become_what_they_are() -> None:
    found = pki.alternative_names(("node1", "10.201.0.11", "::1"))
    expected = [
        x509.DNSName("node1"),
        x509.IPAddress(ipaddress.ip_address("10.201.0.11")),
        x509.IPAddress(ipaddress.ip_address("::1")),
    ]
    assert found == expected


def test_certificates_are_signed_by_the_authority_even_after_it_was_read_again(tmp_path: Path) -> None:
    pki.Authority.create(tmp_path)
    pki.Authority.load(tmp_path).issue(pki.node_subject("node1", "10.201.0.11"))
    authority, node = read(tmp_path, "ca"), read(tmp_path, "node-node1")
    node.verify_directly_issued_by(authority)
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not node.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    names = node.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["node1"]
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("10.201.0.11")]
    [common_name] = node.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    [organization] = node.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    assert (common_name.value, organization.value) == ("system:node:node1", "system:nodes")
    assert node.not_valid_before_utc < datetime.datetime.now(datetime.UTC)


def test_keys_are_p256_and_for_the_owner_only(tmp_path: Path) -> None:
    pki.Authority.create(tmp_path)
    for name in ("ca", "sa"):
        path = tmp_path / f"{name}.key"
        key = serialization.load_pem_private_key(path.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        assert key.curve.name == "secp256r1"
        assert path.stat().st_mode & 0o077 == 0


def test_the_api_server_answers_to_all_of_its_names(tmp_path: Path) -> None:
    [subject] = [s for s in pki.control_subjects(("10.201.1.2", "10.201.16.1")) if s.file == "apiserver"]
    assert {"127.0.0.1", "10.201.1.2", "10.201.16.1", "kubernetes.default.svc"} <= set(subject.hosts)
