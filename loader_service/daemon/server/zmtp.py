"""ZMTP 3.0, the protocol of ZeroMQ's sockets, as far as a ROUTER needs it (https://rfc.zeromq.org/spec/23/).

Owns `FrameReader` and the bytes that a ROUTER sends. Invariant: no more of a peer's bytes is kept than `MAX_SMALL` and
one frame that was announced as larger and then allowed; what it says is checked as it comes. The daemon speaks the
protocol itself, since libzmq keeps whatever a peer sends (endless messages of many frames, thousands of unfinished
ones) before anybody can look at it. Fails with PeerError.

    greeting 64 bytes: ff, 8 bytes, 7f, version 3 0, mechanism NULL in 20 bytes, 32 bytes
    frame: flags (1 more, 2 long, 4 command), length in 1 byte or, long, in 8, body
    command READY: 05 READY, then properties: length 1 byte, name, length 4 bytes, value
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

__all__ = ["GREETING", "MAX_SMALL", "READY", "Frame", "FrameReader", "PeerError", "frame", "pong"]

_MORE, _LONG, _COMMAND = 1, 2, 4
_GREETING_BYTES = 64
_SIGNATURE_BYTES = 10
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
MAX_SMALL = 1 << 14
"""Bytes of a frame that are read without asking."""
_MAX_IDENTITY = 255


class PeerError(Exception):
    """Raised where a peer breaks the protocol or a limit: its connection ends."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A message of a peer (one frame), or a command."""

    body: bytes
    is_command: bool


def frame(body: bytes, flags: int = 0) -> bytes:
    """Return the bytes of a message of one frame."""
    if len(body) < 256:
        return bytes((flags, len(body))) + body
    return struct.pack(">BQ", flags | _LONG, len(body)) + body


def _property(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + struct.pack(">I", len(value)) + value


READY = frame(b"\x05READY" + _property(b"Socket-Type", b"ROUTER") + _property(b"Identity", b""), _COMMAND)


def pong(ping: bytes) -> bytes:
    """Return the answer to a PING command, whose body is `ping`: 04 PING, 2 bytes of time to live, a context."""
    return frame(b"\x04PONG" + ping[7:][:16], _COMMAND)


class FrameReader:
    """The bytes of one peer, in the order in which they come, as frames.

    Attributes:
        identity: the name that the peer gave its socket; None until its handshake is complete.
        announced: the length of a frame above `MAX_SMALL` that the peer has begun, until `allow` is called; else 0.
    """

    def __init__(self) -> None:
        self.identity: bytes | None = None
        self.announced = 0
        self._buffer = bytearray()
        self._is_greeting_read = False
        self._allowed = 0

    def __len__(self) -> int:
        """The number of bytes that have come and are of no frame yet."""
        return len(self._buffer)

    @property
    def is_within(self) -> bool:
        """True while a frame that was allowed is under way."""
        return self._allowed > 0

    @property
    def missing(self) -> int:
        """The number of bytes that complete the frame under way, at least 1."""
        return max(1, self._allowed - len(self._buffer))

    def allow(self) -> None:
        """Let the announced frame be read."""
        self._allowed, self.announced = self.announced + 9, 0

    def feed(self, data: bytes) -> None:
        """Take what has come."""
        self._buffer += data

    def next(self) -> Frame | None:
        """Return the next frame, None until more has come or has been allowed. Raises PeerError."""
        if not self._is_greeting_read and not self._read_greeting():
            return None
        head = self._head()
        if head is None:
            return None
        flags, start, length = head
        if flags & _MORE:
            raise PeerError("a message of several frames; it must have one")
        if start + length > MAX_SMALL and self._allowed < start + length:
            self.announced = length
            return None
        if len(self._buffer) < start + length:
            return None
        body = bytes(memoryview(self._buffer)[start : start + length])
        del self._buffer[: start + length]
        self._allowed = 0
        return self._checked(Frame(body, bool(flags & _COMMAND)))

    def _read_greeting(self) -> bool:
        """Check the greeting as far as it has come; true once it is complete."""
        buffer = self._buffer
        if (buffer and buffer[0] != 0xFF) or (len(buffer) >= _SIGNATURE_BYTES and buffer[9] != 0x7F):
            raise PeerError("no greeting of ZMTP")
        if len(buffer) > _SIGNATURE_BYTES and buffer[10] < 3:
            raise PeerError(f"version {buffer[10]} of ZMTP; it must be at least 3")
        if len(buffer) < _GREETING_BYTES:
            return False
        if bytes(buffer[12:32]).rstrip(b"\0") != b"NULL":
            raise PeerError("another mechanism than NULL")
        del buffer[:_GREETING_BYTES]
        self._is_greeting_read = True
        return True

    def _head(self) -> tuple[int, int, int] | None:
        """The flags, the start of the body and its length, once all of them are here."""
        buffer = self._buffer
        if not buffer:
            return None
        flags = buffer[0]
        if flags & ~(_MORE | _LONG | _COMMAND):
            raise PeerError(f"a frame with flags {flags}")
        if not flags & _LONG:
            return None if len(buffer) < 2 else (flags, 2, buffer[1])
        return None if len(buffer) < 9 else (flags, 9, int.from_bytes(buffer[1:9], "big"))

    def _checked(self, found: Frame) -> Frame:
        """The first frame is the READY command, which names the peer. Raises PeerError."""
        if self.identity is None:
            self.identity = _identity(found)
        return found


def _identity(ready: Frame) -> bytes:
    """The identity that a READY command carries, empty where it carries none. Raises PeerError."""
    if not ready.is_command or not ready.body.startswith(b"\x05READY"):
        raise PeerError("no READY command")
    rest = ready.body[6:]
    while rest:
        name, rest = rest[1 : 1 + rest[0]], rest[1 + rest[0] :]
        length = int.from_bytes(rest[:4], "big")
        value, rest = rest[4 : 4 + length], rest[4 + length :]
        if name.lower() == b"identity" and len(value) <= _MAX_IDENTITY:
            return value
    return b""
