"""The hash chain of a branch: each link covers the one before it and the salted hash of what was said.

Without its salt a link tells nothing about its content, so deleted words leave a chain that still verifies.
"""

import hashlib

GENESIS = bytes(32)


def content_hash(salt: bytes, content: bytes) -> bytes:
    return hashlib.sha256(salt + content).digest()


def link(previous: bytes, kind: str, turn_id: str, hashed: bytes) -> bytes:
    return hashlib.sha256(b"\0".join((previous, kind.encode(), turn_id.encode(), hashed))).digest()
