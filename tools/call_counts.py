"""The length of the three hottest ways through the code: calls, functions and files, counted while they run.

`python -m tools.call_counts` serves a small stream in this process, reads it from a thread, and records every call of
a Python function (`sys.setprofile`). Counted are functions of `loader_service` and `loader_client`; the standard
library, pyzmq and comprehensions are not. Each way is taken many times, and the shortest time counts: what is left is
what a reader cannot leave out.

- next: `next(consumer)` of a batch whose message has arrived, in the client.
- get: in the daemon, from a Get of a step that is ready to the answer.
- built: in the daemon, from a worker's Built to both the answer and the worker's next Build.

In the daemon the decision is counted: what the broker and the lanes do between a message and the ports. The same ways
from the end of the daemon's wait to its last send, with sockets, decoding and the supervisor, are "get, whole" and
"built, whole".
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import loader_client
from loader_service.daemon.config.load import Config
from loader_service.daemon.server.service import Service
from loader_service.wire.endpoint import make_private_directory, runtime_directory

__all__ = ["CallCount", "Recorder", "measure"]

_ROOT = Path(__file__).resolve().parents[1]
_OWN = (str(_ROOT / "loader_service"), str(_ROOT / "client"))
_DECISION = (str(_ROOT / "loader_service/daemon/broker"), str(_ROOT / "loader_service/sharing"))
"""Where the daemon decides; the other rooms carry what is decided."""
_COMPREHENSIONS = frozenset({"<listcomp>", "<genexpr>", "<setcomp>", "<dictcomp>"})
_MESSAGES = frozenset({"Get", "Built", "Build"})
_WAITS = frozenset({"poll", "select"})
_SENDS = frozenset({"send", "send_bytes", "send_multipart", "sendall", "sendmsg", "write"})
_BUILDS = 200
_GETS = 100
_REPEATS = 24
_TICK_S = 0.1
_READY_S = 0.05
"""How long the steps ahead have to be built, and their messages to arrive, before a batch counts as ready."""


@dataclass(frozen=True, slots=True)
class CallCount:
    """One way: how many calls it makes, of how many functions, in how many files, and which ones in order."""

    calls: int
    functions: int
    files: int
    path: tuple[str, ...]

    @classmethod
    def of(cls, codes: list[CodeType]) -> CallCount:
        """Count the calls of `codes`, one entry a call."""
        distinct = list(dict.fromkeys(codes))
        names = [f"{Path(code.co_filename).relative_to(_ROOT)}:{code.co_qualname}" for code in distinct]
        return cls(len(codes), len(distinct), len({code.co_filename for code in codes}), tuple(names))


@dataclass(slots=True)
class _Turn:
    """The work of a daemon between two of its waits. sent: the number of calls made before its last send."""

    codes: list[CodeType] = field(default_factory=list)
    messages: set[str] = field(default_factory=set)
    sends: list[str] = field(default_factory=list)
    sent: int = 0


class Recorder:
    """A profile function (`sys.setprofile`) that records the calls of our own code.

    splits: begin a new turn where that code has waited.
    """

    def __init__(self, *, splits: bool) -> None:
        self.turns: list[_Turn] = [_Turn()]
        self._splits = splits

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code, turn = frame.f_code, self.turns[-1]
        if event == "call" and code.co_filename.startswith(_OWN):
            if code.co_name not in _COMPREHENSIONS:
                turn.codes.append(code)
                turn.messages |= _MESSAGES & {type(value).__name__ for value in frame.f_locals.values()}
        elif event == "call" and code.co_name in _SENDS and _called_by_own(frame):
            turn.sends.append(Path(code.co_filename).parent.name)
            turn.sent = len(turn.codes)
        elif event == "c_call" and argument.__name__ in _SENDS and code.co_filename.startswith(_OWN):
            turn.sends.append("socket")  # the daemon's connections send without Python code in between
            turn.sent = len(turn.codes)
        elif self._splits and _has_waited(frame, event, argument):
            self.turns.append(_Turn())


def _called_by_own(frame: FrameType) -> bool:
    return frame.f_back is not None and frame.f_back.f_code.co_filename.startswith(_OWN)


def _has_waited(frame: FrameType, event: str, argument: Any) -> bool:
    """The end of a wait, of pyzmq's poller or of one written in C."""
    if event == "return":
        return frame.f_code.co_name in _WAITS and _called_by_own(frame)
    return event == "c_return" and argument.__name__ in _WAITS and frame.f_code.co_filename.startswith(_OWN)


def _shortest(turns: list[list[CodeType]]) -> CallCount:
    return min((CallCount.of(codes) for codes in turns), key=lambda count: (count.functions, count.calls))


def measure() -> dict[str, CallCount]:
    """The shortest of each way, by its name. Call it from the main thread."""
    make_private_directory(runtime_directory())
    directory = Path(tempfile.mkdtemp(prefix="calls-", dir=runtime_directory()))
    stream = {"factory": "loader_service.data:synthetic_lines", "args": {"batch_size": 1}, "prefetch": 8}
    config = Config.of(
        {"server": {"endpoint": f"ipc://{directory}/daemon.sock", "workers": 1}, "streams": {"train": stream}}
    )
    daemon, client, failures = Recorder(splits=True), Recorder(splits=False), list[BaseException]()
    try:
        service = Service(config, lambda endpoint: _start(lambda: _read(endpoint, client), service, failures))
        service.loop.clock = _coarse_clock
        sys.setprofile(daemon)
        service.run()
    finally:
        sys.setprofile(None)
        shutil.rmtree(directory, ignore_errors=True)
    if failures:
        raise failures[0]
    gets = [turn.codes[: turn.sent] for turn in daemon.turns if _is_get(turn)]
    builds = [turn.codes[: turn.sent] for turn in daemon.turns if _is_built(turn)]
    return {
        "next": _shortest([turn.codes for turn in client.turns if turn.codes]),
        "get": _shortest([_decision(codes) for codes in gets]),
        "built": _shortest([_decision(codes) for codes in builds]),
        "get, whole": _shortest(gets),
        "built, whole": _shortest(builds),
    }


def _coarse_clock() -> float:
    """A clock that seldom moves between two events, so that the way of a message has nothing of the passing of time."""
    return time.monotonic() // _TICK_S * _TICK_S


def _decision(codes: list[CodeType]) -> list[CodeType]:
    return [code for code in codes if code.co_filename.startswith(_DECISION)]


def _is_get(turn: _Turn) -> bool:
    """A Get that was answered, and nothing else sent."""
    return turn.messages == {"Get"} and "multiprocessing" not in turn.sends and bool(turn.sends)


def _is_built(turn: _Turn) -> bool:
    """A worker's Built, an answer to a client and a Build to the worker."""
    return {"Built", "Build"} <= turn.messages and "Get" not in turn.messages and len(set(turn.sends)) > 1


def _start(read: Callable[[], None], service: Service, failures: list[BaseException]) -> None:
    """Run `read` in a thread, and end the service after it."""

    def run() -> None:
        try:
            read()
        except BaseException as error:  # it is raised again where the service has ended
            failures.append(error)
        finally:
            service.loop.after(0, lambda: service.stop("counted"))

    threading.Thread(target=run, daemon=True).start()


def _read(endpoint: str, recorder: Recorder) -> None:
    """Wait for each step with one consumer, find each batch ready with another, ask for one ready step with many."""
    with loader_client.connect(endpoint) as client:
        with client.open("train", stop_step=_BUILDS) as consumer:
            for batch in consumer:
                del batch
        with client.open("train", start_step=1000) as consumer:
            next(consumer)
            for _ in range(_REPEATS):
                time.sleep(_READY_S)
                recorder.turns.append(_Turn())
                sys.setprofile(recorder)
                batch = next(consumer)
                sys.setprofile(None)
                del batch
            time.sleep(_READY_S)
            for step in [consumer.next_step + 1] * _GETS:
                with client.open("train", start_step=step, stop_step=step + 1) as other:
                    other.get(step)


def main() -> None:
    """Print each way as a row of a table, then its functions; with `--json` all of it as one object."""
    counts = measure()
    if "--json" in sys.argv[1:]:
        print(json.dumps({way: asdict(count) for way, count in counts.items()}))
        return
    print("| way | calls | functions | files |\n|---|---|---|---|")
    for way, count in counts.items():
        print(f"| {way} | {count.calls} | {count.functions} | {count.files} |")
    for way, count in counts.items():
        print(f"\n{way}:", *count.path, sep="\n    ")


if __name__ == "__main__":
    main()
