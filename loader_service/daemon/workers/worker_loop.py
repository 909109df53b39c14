"""The work of a worker: builds the steps that it is told to, into the segments that it is told.

Owns `WorkerLoop`. Invariant: it changes no state but the bytes of the segment under build; steps come two ahead, so the
next build never waits for the broker. It ends when its connection does. A step that cannot be built is an answer, not
the end of the worker. It runs in a process of its own, or in a thread of the daemon (`workers = 0`).
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections import deque
from multiprocessing.connection import Connection

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.batch import Batch
from loader_service.contract.layout import Layout
from loader_service.contract.stream import Stream
from loader_service.daemon.workers.messages import (
    Build,
    Built,
    Denied,
    Explained,
    Failed,
    FromWorker,
    Larger,
    Need,
    Retire,
    ToWorker,
    Verified,
    Verify,
    decode_to_worker,
    encode,
)
from loader_service.daemon.workers.second_build import second_build
from loader_service.daemon.workers.stack_text import MAX_TEXT, shortened
from loader_service.errors import BuildError, LoaderServiceError, from_record
from loader_service.wire.layouts import pack_layout
from loader_service.wire.segment import HEADER_BYTES, Segment

__all__ = ["WorkerLoop"]

_MAX_NAME = 200
_MAX_INDICES = 64


class WorkerLoop:
    """The streams of one worker process and its connection to the daemon."""

    def __init__(self, connection: Connection, streams: list[Stream]) -> None:
        self._connection = connection
        self._streams = streams
        self._segments: dict[str, Segment] = {}
        self._ahead: deque[ToWorker] = deque()

    def run(self) -> None:
        """Work until the connection ends (EOFError, OSError)."""
        while True:
            message = self._ahead.popleft() if self._ahead else self._receive()
            if isinstance(message, Build | Verify):
                self._send(self._done(message))
            elif isinstance(message, Retire):
                self._segments.pop(message.segment, None)

    def _done(self, task: Build | Verify) -> Built | Verified | Failed:
        """Do one task; whatever goes wrong is its answer."""
        try:
            return self._build(task) if isinstance(task, Build) else self._verify(task)
        except BuildError as error:
            failed = _trimmed(error)
        except LoaderServiceError as error:  # there is no memory for it
            failed = BuildError(step=task.step, cause_type=type(error).__name__, cause_message=error.message)
        except Exception as error:  # a collator of the user's that breaks its promises: no reason to die
            kind, trace = type(error).__name__, traceback.format_exc()
            failed = _trimmed(
                BuildError(step=task.step, cause_type=kind, cause_message=str(error), remote_traceback=trace)
            )
        return Failed(task.task, failed.to_record())

    def _build(self, build: Build) -> Built:
        stream, target = self._streams[build.stream], _Target(self, build)
        if build.explain:
            self._explain(build, stream)
        batch = stream.build_into(build.step, target.allocate)
        built = target.commit(batch)
        batch.release()
        return built

    def _verify(self, verify: Verify) -> Verified:
        return second_build(verify, self._streams[verify.stream], self.segment)

    def _explain(self, build: Build, stream: Stream) -> None:
        """Say which samples the step wants: the worker before this one died of it, and this one may."""
        with contextlib.suppress(Exception):  # the build meets the same
            indices = stream.explain(build.step).rows.indices
            self._send(Explained(build.task, indices[:_MAX_INDICES].tolist(), len(indices)))

    def larger(self, task: int, nbytes: int) -> Larger:
        """Ask for a segment of `nbytes`. Raises what the daemon answers where there is none."""
        self._send(Need(task, nbytes))
        while True:
            message = self._receive()
            if isinstance(message, Denied) and message.task == task:
                raise from_record(message.error)
            if isinstance(message, Larger) and message.task == task:
                return message
            self._ahead.append(message)

    def segment(self, name: str) -> Segment:
        """The writeable mapping of a segment, kept until it is retired."""
        if name not in self._segments:
            self._segments[name] = Segment.open(name, os.geteuid(), writeable=True)
        return self._segments[name]

    def _receive(self) -> ToWorker:
        return decode_to_worker(self._connection.recv_bytes())

    def _send(self, message: FromWorker) -> None:
        self._connection.send_bytes(encode(message))


class _Target:
    """The segment of one build: begin, write, commit."""

    def __init__(self, worker: WorkerLoop, build: Build) -> None:
        self._worker, self._build = worker, build
        self._segment: Segment | None = None
        self._placement = build.placement
        self._layout = Layout((), 0)

    def allocate(self, layout: Layout) -> NDArray[np.uint8]:
        """The payload for `layout`, in a larger segment where its own is too small."""
        needed = HEADER_BYTES + layout.nbytes
        if needed > self._placement.nbytes:
            self._placement = self._worker.larger(self._build.task, needed).placement
        self._layout, self._segment = layout, self._worker.segment(self._placement.segment)
        self._segment.begin(self._build.step, self._placement.generation)
        return self._segment.payload[: layout.nbytes]

    def commit(self, batch: Batch) -> Built:
        assert self._segment is not None  # build_into allocates before it returns
        self._segment.commit(self._build.step, self._placement.generation, self._layout.nbytes)
        place = (batch.epoch, batch.step_in_epoch)
        return Built(self._build.task, *place, self._layout.nbytes, batch.rows, pack_layout(self._layout))


def _trimmed(error: BuildError) -> BuildError:
    """The same error with texts that fit a message."""
    return BuildError(
        step=error.step,
        slot=error.slot,
        index=error.index,
        cause_type=error.cause_type[:_MAX_NAME],
        cause_message=error.cause_message[:MAX_TEXT],
        remote_traceback=shortened(error.remote_traceback),
    )
