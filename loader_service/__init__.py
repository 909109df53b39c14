"""Training batches from shared memory: the batch at step g is a pure function of (seed, g), for any number of
trainers.

`Stream` says what is served, `Loader` runs it in this process, `LocalService` and `loader-service serve` share it among
processes, which read it with `loader_client`.
"""

from typing import TYPE_CHECKING, Any

from loader_service.core.batch import Batch
from loader_service.core.collate import ImageBatchCollator, PadCollator, StackCollator
from loader_service.core.fingerprint import explain_difference
from loader_service.core.sample import Dataset, ImageSample
from loader_service.core.samplers import BucketedSampler, MixingSampler, SequentialSampler, ShuffledSampler
from loader_service.core.stream import Stream
from loader_service.loader import Loader

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:
    """`LocalService` needs the extra `server`, so it is imported only where it is asked for."""
    if name == "LocalService":
        from loader_service.local import LocalService

        return LocalService
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
