"""Facts of the streams, as the workers tell them.

Owns `StreamCatalog`. Invariant: every worker made the same streams, at start and ever after; one that did not may build
nothing. Fails with FactoryError.
"""

from __future__ import annotations

from loader_service.daemon.config.load import Config
from loader_service.daemon.workers.messages import Start, StreamFacts, StreamSpec
from loader_service.errors import FactoryError
from loader_service.wire.segment import HEADER_BYTES

__all__ = ["StreamCatalog"]


class StreamCatalog:
    """The configured streams and, once the first worker is ready, the facts of each."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.facts: list[StreamFacts] = []
        self._batch_bytes: dict[str, int] = {}

    def start_message(self, worker: int) -> Start:
        """The first message to worker number `worker`; worker 0 measures the streams that have no slot_bytes."""
        specs = [
            StreamSpec(name, stream.factory, stream.args, measure=worker == 0 and not stream.initial_slot_bytes)
            for name, stream in self._config.streams.items()
        ]
        return Start(self._config.server.import_paths, specs, self._config.server.compiled)

    def check(self, worker: int, facts: list[StreamFacts]) -> None:
        """Compare what a worker made with what the others made. Raises FactoryError."""
        self._batch_bytes |= {one.name: one.batch_bytes for one in facts if one.batch_bytes is not None}
        self.facts = self.facts or facts
        for known, new in zip(self.facts, facts, strict=True):
            if (known.fingerprint, known.steps_per_epoch) != (new.fingerprint, new.steps_per_epoch):
                raise FactoryError(
                    f"stream {known.name!r}: worker {worker} made a stream with another fingerprint than the workers "
                    "before it; a factory must give the same stream each time, and its code and data must stay as "
                    "they are while the daemon runs"
                )

    def slot_bytes(self, name: str) -> int:
        """The first size of a stream's segments: as configured, else a quarter more than its first batch."""
        payload = self._config.streams[name].initial_slot_bytes or self._batch_bytes.get(name, 0) * 5 // 4
        return HEADER_BYTES + payload
