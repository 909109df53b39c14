"""Messages between the daemon and its workers, typed and checked by msgspec.

Owns the message classes and their codec. Invariant: they travel over the worker's own socket pair only, in order;
the end of that connection is the order to end.
"""

from __future__ import annotations

from typing import Any

import msgspec

from loader_service.sharing.placement import Placement

__all__ = [
    "Build",
    "Built",
    "Denied",
    "Explained",
    "Failed",
    "FromWorker",
    "Larger",
    "Need",
    "Retire",
    "Start",
    "StartFailed",
    "Started",
    "StreamFacts",
    "StreamSpec",
    "ToWorker",
    "Verified",
    "Verify",
    "decode_from_worker",
    "decode_to_worker",
    "encode",
]


class StreamSpec(msgspec.Struct, frozen=True):
    """A stream as configured. measure: also report the bytes of its first batch."""

    name: str
    factory: str
    args: dict[str, Any]
    measure: bool


class StreamFacts(msgspec.Struct, frozen=True):
    """A stream as the worker made it. batch_bytes: of step 0, or None where that was not measured.

    description: what the fingerprint is a digest of.
    """

    name: str
    steps_per_epoch: int
    fingerprint: str
    description: dict[str, Any]
    batch_bytes: int | None


class Start(msgspec.Struct, frozen=True, tag=True):
    """The first message: what to import from where, which streams to make."""

    import_paths: list[str]
    streams: list[StreamSpec]


class Build(msgspec.Struct, frozen=True, tag=True):
    """Build `step` of stream number `stream` into the segment of `placement`.

    explain: say first which samples stand in it.
    """

    task: int
    stream: int
    step: int
    placement: Placement
    explain: bool = False


class Verify(msgspec.Struct, frozen=True, tag=True):
    """Build `step` once more, into memory of your own, and compare it with the `nbytes` that stand in `placement`."""

    task: int
    stream: int
    step: int
    placement: Placement
    nbytes: int
    layout: bytes


class Larger(msgspec.Struct, frozen=True, tag=True):
    """Answers Need: build into this segment instead."""

    task: int
    placement: Placement


class Denied(msgspec.Struct, frozen=True, tag=True):
    """Answers Need: there is no larger segment; the record of the error that the step fails with."""

    task: int
    error: dict[str, Any]


class Retire(msgspec.Struct, frozen=True, tag=True):
    """The segment is used no more: unmap it."""

    segment: str


class Started(msgspec.Struct, frozen=True, tag=True):
    """READY: all streams are made."""

    streams: list[StreamFacts]


class StartFailed(msgspec.Struct, frozen=True, tag=True):
    """A stream could not be made: the error's record."""

    error: dict[str, Any]


class Need(msgspec.Struct, frozen=True, tag=True):
    """The batch of this task needs a segment of `nbytes`."""

    task: int
    nbytes: int


class Built(msgspec.Struct, frozen=True, tag=True):
    """The step is in its segment: its place in the run, its bytes, its rows, its layout (packed)."""

    task: int
    epoch: int
    step_in_epoch: int
    nbytes: int
    rows: int
    layout: bytes


class Explained(msgspec.Struct, frozen=True, tag=True):
    """The first dataset indices of the step that is built now, and how many rows it has."""

    task: int
    indices: list[int]
    rows: int


class Verified(msgspec.Struct, frozen=True, tag=True):
    """The step was built once more: in which tensors it differs, in words. skipped: why it was not compared."""

    task: int
    differences: list[str]
    skipped: str = ""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The step cannot be built: the error's record."""

    task: int
    error: dict[str, Any]


ToWorker = Start | Build | Verify | Larger | Denied | Retire
FromWorker = Started | StartFailed | Explained | Need | Built | Verified | Failed

_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_from_worker = msgspec.msgpack.Decoder(FromWorker)


def encode(message: ToWorker | FromWorker) -> bytes:
    """One message as bytes."""
    return _encoder.encode(message)


def decode_to_worker(data: bytes) -> ToWorker:
    """What the daemon sent."""
    return _to_worker.decode(data)


def decode_from_worker(data: bytes) -> FromWorker:
    """What a worker sent."""
    return _from_worker.decode(data)
