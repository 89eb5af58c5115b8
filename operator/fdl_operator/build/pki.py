"""Keys of one run: a random token, a CA of its own, and the coordinator's certificate (P-256)."""

import datetime
import secrets
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fdl_api import names

LIFETIME: Final = datetime.timedelta(days=3650)
"""Longer than any run: the keys of a run are never rotated, a new run has new ones."""
SKEW: Final = datetime.timedelta(hours=1)
"""Nodes whose clocks are behind accept the certificate, too."""
MAX_COMMON_NAME: Final = 64


@dataclass(frozen=True, slots=True)
class KeyMaterial:
    """What goes into the run's Secret, as text."""

    token: str
    ca: str
    certificate: str
    key: str


def new_keys(run: str, namespace: str, now: datetime.datetime) -> KeyMaterial:
    """Fresh keys for a run.

    Args:
        run: the run's name.
        namespace: its namespace.
        now: current time, aware of its zone.
    """
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"fdl run {run}"[:MAX_COMMON_NAME])])
    ca = (
        _builder(ca_name, ca_name, ca_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    service = names.coordinator_service(run)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, service[:MAX_COMMON_NAME])])
    hosts = [service, f"{service}.{namespace}", names.coordinator_host(run, namespace)]
    certificate = (
        _builder(subject, ca_name, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    return KeyMaterial(
        token=secrets.token_hex(32),
        ca=_pem(ca),
        certificate=_pem(certificate),
        key=key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode(),
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, now: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + LIFETIME)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
