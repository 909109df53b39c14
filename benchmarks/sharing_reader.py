"""A consumer process of `benchmarks.sharing`.

    python -m benchmarks.sharing_reader ENDPOINT START STOP PAUSE_S

It connects and prints "open", waits for a line, reads the steps, prints the batches per second, and ends after a line.
"""

from __future__ import annotations

import sys
import time

import loader_client

__all__ = ["main"]


def main() -> None:
    """Read the steps and print the rate."""
    endpoint, start, stop, pause_s = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    with loader_client.connect(endpoint) as client, client.open("lines", start, stop) as consumer:
        print("open", flush=True)
        sys.stdin.readline()
        began = time.perf_counter()
        for batch in consumer:
            batch.release()
            if pause_s:
                time.sleep(pause_s)
        print((stop - start) / (time.perf_counter() - began), flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main()
