"""Certificates of a cluster: one authority, P-256 keys, made anew for each cluster."""

import datetime
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID_DAYS = 3650


@dataclass(frozen=True)
class Subject:
    """Who a certificate speaks for: file name, common name, organization, names and addresses."""

    file: str
    common_name: str
    organization: str
    hosts: tuple[str, ...] = ()


def control_subjects(addresses: Iterable[str]) -> list[Subject]:
    """The control plane's certificates; ``addresses`` are those at which the API server is reached."""
    service = "kubernetes.default.svc"
    names = ("kubernetes", "kubernetes.default", service, f"{service}.cluster.local", "localhost", "127.0.0.1")
    return [
        Subject("apiserver", "kube-apiserver", "fdl", (*names, *addresses)),
        Subject("admin", "kubernetes-admin", "system:masters"),
        Subject("controller-manager", "system:kube-controller-manager", "fdl"),
        Subject("scheduler", "system:kube-scheduler", "fdl"),
        Subject("proxy", "system:kube-proxy", "fdl"),
        Subject("kubelet-client", "kube-apiserver-kubelet-client", "system:masters"),
        Subject("router", "fdl:kube-router", "fdl"),
        Subject("dns", "fdl:coredns", "fdl"),
        Subject("provisioner", "fdl:hostpath-provisioner", "fdl"),
    ]


def node_subject(node: str, address: str) -> Subject:
    """A kubelet's certificate, for serving and as the node's identity."""
    return Subject(f"node-{node}", f"system:node:{node}", "system:nodes", (node, address))


def alternative_names(hosts: Iterable[str]) -> list[x509.GeneralName]:
    """Subject alternative names: addresses as such, all else as DNS names."""
    result: list[x509.GeneralName] = []
    for host in hosts:
        try:
            result.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            result.append(x509.DNSName(host))
    return result


def _write(path: Path, data: bytes, secret: bool) -> None:
    path.touch(mode=0o600 if secret else 0o644)
    path.write_bytes(data)


def _write_key(folder: Path, name: str, key: ec.EllipticCurvePrivateKey) -> None:
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    _write(folder / f"{name}.key", pem, secret=True)


def _name(common_name: str, organization: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # An hour early: clocks of one machine agree, but a clock may be set back.
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=_VALID_DAYS))
    )


def _usage(*, authority: bool) -> x509.KeyUsage:
    """Key usage of an authority or of an end; Python 3.13 and newer refuse certificates that do not say it."""
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


class Authority:
    """The cluster's certificate authority, kept in a folder."""

    def __init__(self, folder: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._folder = folder
        self._key = key
        self._certificate = certificate

    @classmethod
    def create(cls, folder: Path) -> "Authority":
        """Makes the authority (``ca``) and the key that signs service account tokens (``sa``)."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("fdl-local-ca", "fdl")
        certificate = (
            _builder(name, name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(authority=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        _write_key(folder, "ca", key)
        _write(folder / "ca.crt", certificate.public_bytes(serialization.Encoding.PEM), secret=False)
        tokens = ec.generate_private_key(ec.SECP256R1())
        _write_key(folder, "sa", tokens)
        public = tokens.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        _write(folder / "sa.pub", public, secret=False)
        return cls(folder, key, certificate)

    @classmethod
    def load(cls, folder: Path) -> "Authority":
        """Reads an authority made before."""
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return cls(folder, key, x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes()))

    def issue(self, subject: Subject) -> None:
        """Writes ``<file>.crt`` and ``<file>.key``, good for both ends of a connection."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(_name(subject.common_name, subject.organization), self._certificate.subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(authority=False), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
        )
        if subject.hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName(alternative_names(subject.hosts)), critical=False
            )
        certificate = builder.sign(self._key, hashes.SHA256())
        _write_key(self._folder, subject.file, key)
        _write(self._folder / f"{subject.file}.crt", certificate.public_bytes(serialization.Encoding.PEM), secret=False)
