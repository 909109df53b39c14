"""Training batches from shared memory: the batch at step g is a pure function of (seed, g), for any number of
trainers.

`Stream` says what is served, `Loader` runs it in this process, `LocalService` and `loader-service serve` share it among
processes, which read it with `loader_client`. Each name is imported when it is first used, so that a command starts at
once and a trainer loads nothing of the daemon.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loader_service.contract.batch import Batch
    from loader_service.contract.collate import ImageBatchCollator, PadCollator, StackCollator
    from loader_service.contract.fingerprint import explain_difference
    from loader_service.contract.sample import Dataset, ImageSample
    from loader_service.contract.samplers import BucketedSampler, MixingSampler, SequentialSampler, ShuffledSampler
    from loader_service.contract.stream import Stream
    from loader_service.loader import Loader
    from loader_service.local import LocalService

__all__ = [
    "Batch",
    "BucketedSampler",
    "Dataset",
    "ImageBatchCollator",
    "ImageSample",
    "Loader",
    "LocalService",
    "MixingSampler",
    "PadCollator",
    "SequentialSampler",
    "ShuffledSampler",
    "StackCollator",
    "Stream",
    "explain_difference",
]

__version__ = "0.1.0"

_HOMES = {
    "Batch": "contract.batch",
    "BucketedSampler": "contract.samplers",
    "Dataset": "contract.sample",
    "ImageBatchCollator": "contract.collate",
    "ImageSample": "contract.sample",
    "Loader": "loader",
    "LocalService": "local",
    "MixingSampler": "contract.samplers",
    "PadCollator": "contract.collate",
    "SequentialSampler": "contract.samplers",
    "ShuffledSampler": "contract.samplers",
    "StackCollator": "contract.collate",
    "Stream": "contract.stream",
    "explain_difference": "contract.fingerprint",
}
"""Where each public name lives."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value
