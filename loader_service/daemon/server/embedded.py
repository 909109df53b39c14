"""A daemon that belongs to another process: it gets its configuration from its owner and ends with it.

Owns the process's `main`. Invariant: one line of JSON in (the configuration, the directory that goes with the daemon),
one line out (the endpoint, or the error that kept it from starting); when the owner closes the connection, however it
ends, the daemon ends. It logs warnings, errors and what datasets print; see `ops.logs`.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import sys
from contextlib import closing, suppress

from loader_service.daemon.config.load import Config
from loader_service.daemon.ops import logs
from loader_service.daemon.server.service import Service
from loader_service.daemon.workers.orphans import adopt
from loader_service.errors import LoaderServiceError

__all__ = ["main"]


def _say(owner: socket.socket, content: dict[str, object]) -> None:
    with suppress(OSError):  # the owner is gone: so is whoever would read it, and the daemon ends
        owner.sendall(json.dumps(content).encode() + b"\n")


def main() -> int:
    """`python -m loader_service.daemon.server.embedded FD`: FD is this end of the owner's socket pair."""
    adopt()
    with socket.socket(fileno=int(sys.argv[1])) as owner:
        owner.set_inheritable(False)
        with owner.makefile("rb") as lines:
            line = lines.readline()
        if not line.endswith(b"\n"):
            return 0  # the owner ended before it had said what to serve
        given = json.loads(line)
        try:
            as_json = logs.wants_json(os.environ.get(logs.ENVIRONMENT_VARIABLE, ""))
            with closing(logs.configure("warning", as_json=as_json)):
                logging.getLogger("loader_service.output").setLevel(logging.INFO)  # what datasets print is for its user
                service = Service(Config.of(given["config"]), lambda endpoint: _say(owner, {"endpoint": endpoint}))
                service.loop.watch(owner.fileno(), lambda: service.stop("the process that started it has ended"))
                return service.run()
        except LoaderServiceError as error:
            _say(owner, {"error": error.to_record()})
            return 1
        finally:
            if given["directory"] is not None:
                shutil.rmtree(given["directory"], ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
