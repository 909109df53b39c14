"""The trainer's side: connect to a daemon, open a stream, read its batches as zero-copy views.

    import loader_client
    with loader_client.connect() as client, client.open("train") as consumer:
        for batch in consumer:
            train(batch["images"], batch["targets"])

Every error that a trainer can meet is here too, such as `loader_client.HoldLimitError`. Needs numpy, pyzmq and msgpack
only.
"""

from loader_client.connection import Client, connect
from loader_client.consumer import Consumer
from loader_service.contract.batch import Batch
from loader_service.errors import (
    ArgumentError,
    BuildError,
    ConfigurationError,
    ConsumerClosedError,
    DeadlineError,
    EndpointError,
    EvictedError,
    ForkedClientError,
    HoldLimitError,
    IntegrityError,
    LoaderServiceError,
    MemoryLimitError,
    ProtocolError,
    ReleasedError,
    ServiceClosedError,
    ServiceUnavailableError,
    SharedMemoryError,
    StreamChangedError,
    UnknownStreamError,
)

__all__ = [
    "ArgumentError",
    "Batch",
    "BuildError",
    "Client",
    "ConfigurationError",
    "Consumer",
    "ConsumerClosedError",
    "DeadlineError",
    "EndpointError",
    "EvictedError",
    "ForkedClientError",
    "HoldLimitError",
    "IntegrityError",
    "LoaderServiceError",
    "MemoryLimitError",
    "ProtocolError",
    "ReleasedError",
    "ServiceClosedError",
    "ServiceUnavailableError",
    "SharedMemoryError",
    "StreamChangedError",
    "UnknownStreamError",
    "connect",
]
