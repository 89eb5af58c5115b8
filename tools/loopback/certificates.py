"""The authority and the certificate of a run, as the operator makes them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def make_certificates(folder: Path, host: str) -> None:
    """The run's authority and the coordinator's certificate: ca.crt, tls.crt and tls.key in a folder.

    Args:
        folder: where the files go.
        host: DNS name of the coordinator.
    """
    now = datetime.now(UTC)
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "digits authority")])
    days = timedelta(days=2)

    def builder(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority_name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - days)
            .not_valid_after(now + days)
        )

    authority = (
        builder(authority_name, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    certificate = (
        builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "coordinator")]), key.public_key())
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    (folder / "ca.crt").write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    (folder / "tls.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "tls.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
