"""The trainer's side: connect to a daemon, open a stream, read its batches as zero-copy views.

    import loader_client
    with loader_client.connect() as client, client.open("train") as consumer:
        for batch in consumer:
            train(batch["images"], batch["targets"])

Needs numpy, pyzmq and msgpack only.
"""

from loader_client.connection import Client, connect
from loader_client.consumer import Consumer
from loader_service.contract.batch import Batch

__all__ = ["Batch", "Client", "Consumer", "connect"]
