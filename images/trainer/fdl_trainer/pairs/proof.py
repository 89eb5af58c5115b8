"""How the two ends of a test prove that they are of one run, and who they are.

Both know the run's token. The one that listens says nothing but a greeting with fresh bytes until the other one has
proven that it knows it, too; its own proof then tells the other one that no stranger (a proxy, another pod with that
address) answers. Nothing that is sent can be used again.
"""

import hashlib
import hmac
import secrets

MAGIC = b"fdl-pair"
NONCE_BYTES = 16
GREETING_BYTES = len(MAGIC) + NONCE_BYTES
PROOF_BYTES = hashlib.sha256().digest_size


def key_of(token: str) -> bytes:
    """The key of a run's tests, from its token."""
    return hmac.digest(token.encode(), b"fdl pairs", hashlib.sha256)


def greeting() -> bytes:
    """What the one that listens says first."""
    return MAGIC + nonce()


def nonce() -> bytes:
    """Fresh bytes."""
    return secrets.token_bytes(NONCE_BYTES)


def dialled(key: bytes, target: str, greeted: bytes, fresh: bytes) -> bytes:
    """Proof of the one that dials.

    Args:
        key: of the run.
        target: UID of the rank that is meant.
        greeted: the other end's greeting.
        fresh: the own fresh bytes.
    """
    return _proof(key, b"dial", target, greeted, fresh)


def answered(key: bytes, target: str, greeted: bytes, fresh: bytes) -> bytes:
    """Proof of the one that listens; see :func:`dialled`."""
    return _proof(key, b"answer", target, greeted, fresh)


def _proof(key: bytes, end: bytes, target: str, greeted: bytes, fresh: bytes) -> bytes:
    return hmac.digest(key, b"\0".join((end, target.encode(), greeted + fresh)), hashlib.sha256)
