"""Training batches from shared memory: the batch at step g is a pure function of (seed, g), for any number of
trainers.

`Stream` says what is served, `Loader` runs it in this process, `LocalService` and `loader-service serve` share it among
processes, which read it with `loader_client`. Each name is imported when it is first used, so that a command starts at
once and a trainer loads nothing of the daemon.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loader_service import augment, errors
    from loader_service.contract.batch import Batch
    from loader_service.contract.collate import (
        BatchContext,
        Collator,
        ImageBatchCollator,
        PadCollator,
        SlotError,
        StackCollator,
    )
    from loader_service.contract.explain import Explanation
    from loader_service.contract.fingerprint import CONTRACT_VERSION, explain_difference
    from loader_service.contract.images import gray8_to_planar, rgb8_to_planar
    from loader_service.contract.layout import EACH_ROW, WHOLE, Layout, TensorSpec, ragged
    from loader_service.contract.permutation import permute
    from loader_service.contract.rng import RngArray, SampleRng, derive, derive_slots, mix
    from loader_service.contract.sample import Dataset, ImageSample
    from loader_service.contract.samplers import (
        BucketedSampler,
        MixingSampler,
        Sampler,
        SequentialSampler,
        ShuffledSampler,
    )
    from loader_service.contract.shards import Shard
    from loader_service.contract.stream import Stream
    from loader_service.errors import (
        ArgumentError,
        BuildError,
        ConfigurationError,
        DataError,
        FingerprintError,
        LoaderServiceError,
    )
    from loader_service.loader import Loader
    from loader_service.local import LocalService

__all__ = [
    "CONTRACT_VERSION",
    "EACH_ROW",
    "WHOLE",
    "ArgumentError",
    "Batch",
    "BatchContext",
    "BucketedSampler",
    "BuildError",
    "Collator",
    "ConfigurationError",
    "DataError",
    "Dataset",
    "Explanation",
    "FingerprintError",
    "ImageBatchCollator",
    "ImageSample",
    "Layout",
    "Loader",
    "LoaderServiceError",
    "LocalService",
    "MixingSampler",
    "PadCollator",
    "RngArray",
    "SampleRng",
    "Sampler",
    "SequentialSampler",
    "Shard",
    "ShuffledSampler",
    "SlotError",
    "StackCollator",
    "Stream",
    "TensorSpec",
    "augment",
    "derive",
    "derive_slots",
    "errors",
    "explain_difference",
    "gray8_to_planar",
    "mix",
    "permute",
    "ragged",
    "rgb8_to_planar",
]

__version__ = "0.1.0"

_PLACES = {
    "contract.batch": ["Batch"],
    "contract.collate": [
        "BatchContext",
        "Collator",
        "ImageBatchCollator",
        "PadCollator",
        "SlotError",
        "StackCollator",
    ],
    "contract.explain": ["Explanation"],
    "contract.fingerprint": ["CONTRACT_VERSION", "explain_difference"],
    "contract.images": ["gray8_to_planar", "rgb8_to_planar"],
    "contract.layout": ["EACH_ROW", "WHOLE", "Layout", "TensorSpec", "ragged"],
    "contract.permutation": ["permute"],
    "contract.rng": ["RngArray", "SampleRng", "derive", "derive_slots", "mix"],
    "contract.sample": ["Dataset", "ImageSample"],
    "contract.samplers": ["BucketedSampler", "MixingSampler", "Sampler", "SequentialSampler", "ShuffledSampler"],
    "contract.shards": ["Shard"],
    "contract.stream": ["Stream"],
    "errors": [
        "ArgumentError",
        "BuildError",
        "ConfigurationError",
        "DataError",
        "FingerprintError",
        "LoaderServiceError",
    ],
    "loader": ["Loader"],
    "local": ["LocalService"],
}
_MODULES = {name: module for module, names in _PLACES.items() for name in names}
"""The module of each public name; `augment` and `errors` are modules themselves."""


def __getattr__(name: str) -> Any:
    if name in ("augment", "errors"):
        return import_module(f"{__name__}.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    """The public names, those that are not imported yet too."""
    return sorted({*__all__, *globals()})
