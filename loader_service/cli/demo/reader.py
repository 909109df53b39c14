"""One reading process of the demo: reads the stream, digests every byte, says how far it is.

Owns the process's `main` and `digest_batches`, which the reference run shares. Lines of JSON on standard output:
{"opened": true}, then, once a line on standard input says go, {"step": n} now and then, and at last {"digest",
"seconds", "batches"}; or {"error": record}.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import loader_client
from loader_service.contract.batch import Batch
from loader_service.errors import LoaderServiceError

__all__ = ["STREAM", "digest_batches", "main"]

STREAM = "lines"
_REPORT_S = 0.1


def digest_batches(batches: Iterable[Batch], progress: Callable[[int], None]) -> str:
    """SHA-256 over all batches, each dropped before the next is asked for; `progress(number read)`."""
    hasher = hashlib.sha256()
    for number, batch in enumerate(batches, 1):
        with batch:
            batch.update_digest(hasher)
        progress(number)
    return hasher.hexdigest()


def _say(content: dict[str, object]) -> None:
    print(json.dumps(content), flush=True)


def _read(endpoint: str, steps: int) -> None:
    said = 0.0

    def progress(number: int) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said >= _REPORT_S or number == steps:
            said = now
            _say({"step": number})

    with loader_client.connect(endpoint) as client, client.open(STREAM, 0, steps) as consumer:
        _say({"opened": True})
        sys.stdin.readline()  # until the other reader stands at the same step
        start = time.perf_counter()
        digest = digest_batches(consumer, progress)
        _say({"digest": digest, "seconds": time.perf_counter() - start, "batches": steps})


def main() -> None:
    """`python -m loader_service.cli.demo.reader ENDPOINT STEPS`."""
    with suppress(KeyboardInterrupt, BrokenPipeError):  # the demo was interrupted, and says so itself
        try:
            _read(sys.argv[1], int(sys.argv[2]))
        except LoaderServiceError as error:
            _say({"error": error.to_record()})
            sys.exit(1)


if __name__ == "__main__":
    main()
