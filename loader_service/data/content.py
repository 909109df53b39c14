"""What a file holds, as a digest.

Owns `content_digest`. Invariant: files of the same bytes have the same digest, wherever they lie. A file of up to 64
MiB is read whole; of a larger one the size, the first and last MiB and 64 blocks evenly between count, so that a
worker does not read a terabyte before it starts: a change that misses all of them is not seen.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["content_digest"]

_WHOLE_BYTES = 64 << 20
_END_BYTES = 1 << 20
_BLOCKS = 64
_BLOCK_BYTES = 64 << 10


def content_digest(path: Path) -> str:
    """SHA-256, hexadecimal. Raises OSError."""
    size = path.stat().st_size
    hasher = hashlib.sha256(f"{size}\n".encode())
    with path.open("rb") as file:
        if size <= _WHOLE_BYTES:
            while block := file.read(_END_BYTES):
                hasher.update(block)
            return hasher.hexdigest()
        inner = ((size * place // (_BLOCKS + 1), _BLOCK_BYTES) for place in range(1, _BLOCKS + 1))
        for offset, nbytes in [(0, _END_BYTES), *inner, (size - _END_BYTES, _END_BYTES)]:
            file.seek(offset)
            hasher.update(file.read(nbytes))
    return hasher.hexdigest()
