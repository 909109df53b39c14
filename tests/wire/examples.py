"""One message of each class, as the tests of the wire send and spoil them."""

from __future__ import annotations

from dataclasses import astuple, fields
from typing import Any

import msgpack

from loader_service.errors import ArgumentError
from loader_service.sharing.placement import Placement
from loader_service.wire import messages
from loader_service.wire.messages import CLIENT_MESSAGES, DAEMON_MESSAGES

__all__ = ["BOTH", "EXAMPLES", "GET", "KINDS", "LARGEST", "LONGEST_TEXT", "packed"]

LARGEST = 2**63 - 1
LONGEST_TEXT = "é" * 65536
EXAMPLES: list[Any] = [
    messages.Hello(1, 4242, 4026531836),
    messages.Open(2, 1, "train", LARGEST, True, "wait", 1_500_000, 2, 1, 3, 2**62 - 1),
    messages.Get(3, 1, 0, 2**62, [5, LARGEST], True),
    messages.Demand(1, LARGEST),
    messages.Release(1, [5, 6, 7]),
    messages.Close(4, 1, []),
    messages.Bye(),
    messages.Status(5, True),
    messages.Stop(6, 2**62 - 1),
    messages.Welcome(1, 17, 4026531836, ["train", "ünïcode ✓"], 2**62 - 1),
    messages.Tune(8, "train", {"prefetch": 16, "memory_limit": "4GiB"}, 0),
    messages.Opened(2, 10, 8, 2, 1000, "0" * 64, {"seed": 7, "sampler": {"class": "x"}}),
    messages.Ready(3, 5, 0, 12, 1, 2, 4, Placement("lsv-1-2-3-4", 9, 4096), 128, 2, b"\x90 any bytes", 8, False),
    messages.Report(5, {"pid": 1, "streams": [{"name": "train"}], "memory_bytes": 0}),
    messages.Done(6),
    messages.Error(7, ArgumentError("batch_size is 0").to_record()),
    messages.Closing("SIGTERM"),
    messages.Ping(),
]
GET = messages.Get(7, 1, 0, 1, [], True)
KINDS = [message.kind for message in EXAMPLES]
BOTH = CLIENT_MESSAGES | DAEMON_MESSAGES


def packed(message: Any, **changes: Any) -> bytes:
    """The second frame of a message, with other fields than its class would take."""
    content = {"kind": message.kind} | {field.name: getattr(message, field.name) for field in fields(message)}
    sent = {name: value for name, value in (content | changes).items() if value is not ...}
    return bytes(msgpack.packb(sent, default=astuple))
