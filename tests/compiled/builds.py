"""The same batch, built by kernels, by numpy, and by the scalar reading of the rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader_service.augment import Blur, Erase, GainOffset, Noise, Shear
from loader_service.contract.collate import BatchContext, Collator
from loader_service.contract.fused import CompiledMode, set_compiled
from loader_service.contract.ragged import RaggedImages
from loader_service.contract.sample import ImageSample

__all__ = ["SHIPPED", "bits", "in_one_block", "make_samples", "tensors_of"]

SHIPPED: dict[str, Any] = {
    "gain_offset": GainOffset(),
    "noise": Noise(0.25),
    "blur": Blur(0.75),
    "shear": Shear(0.5, -1.0),
    "erase": Erase(0.5, 2.0),
}


def make_samples(widths: Sequence[int], channels: int, height: int, seed: int = 0) -> list[ImageSample]:
    """Images of every kind of float: ordinary, denormal, both zeros, infinite and NaN."""
    rng = np.random.default_rng(seed)
    odd = np.array([0.0, -0.0, 1e-42, -1e-42, 3e38, -3e38, np.inf, -np.inf, np.nan], np.float32)
    samples = []
    for row, width in enumerate(widths):
        image = (rng.random((channels, height, width), np.float32) - np.float32(0.5)) * np.float32(4)
        flat = image.reshape(-1)
        places = rng.integers(0, max(flat.size, 1), flat.size // 9)
        flat[places] = odd[rng.integers(0, len(odd), len(places))]
        target = rng.integers(0, 100, row % 4).astype(np.int32)
        samples.append(ImageSample(image, target, row - 3))
    return samples


def in_one_block(samples: Sequence[ImageSample]) -> RaggedImages:
    """The same samples in a block, with values between them that belong to none."""
    between = np.full(3, 77, np.float32)
    values = np.concatenate([part for sample in samples for part in (between, sample.image.reshape(-1))])
    sizes = np.array([sample.image.size for sample in samples], np.int64)
    lengths = np.array([len(sample.target) for sample in samples], np.int64)
    widths = np.array([sample.image.shape[2] for sample in samples], np.int64)
    channels, height, _ = samples[0].image.shape
    return RaggedImages(
        values,
        np.cumsum(sizes + 3) - sizes,
        widths,
        channels,
        height,
        np.concatenate([sample.target for sample in samples]),
        np.cumsum(lengths) - lengths,
        lengths,
        np.array([sample.label for sample in samples], np.int32),
    )


def tensors_of(
    mode: CompiledMode, collator: Collator[Any], samples: Sequence[Any], first_slot: int = 0, fill: int = 0xFF
) -> dict[str, NDArray[Any]]:
    """Build what the collator makes in this mode, in memory that holds `fill` before, between bytes that must stay."""
    set_compiled(mode)
    context = BatchContext(-9, 3, 4, np.arange(len(samples)), first_slot=first_slot)
    layout = collator.plan(samples, context)
    room = np.full(layout.nbytes + 192, fill, np.uint8)
    begin = -room.ctypes.data % 64 + 64
    tensors = layout.views(room[begin : begin + layout.nbytes])
    collator.write(samples, context, tensors)
    assert (room[:begin] == fill).all()
    assert (room[begin + layout.nbytes :] == fill).all()
    return tensors


def bits(tensors: dict[str, NDArray[Any]]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Names, dtypes, shapes and bytes; a NaN is a NaN, for no rule says which of them an operation gives."""
    found = {}
    for name, tensor in tensors.items():
        array = tensor
        if tensor.dtype.kind == "f":
            array = np.where(np.isnan(tensor), tensor.dtype.type(np.nan), tensor)
        found[name] = (tensor.dtype.str, tensor.shape, array.tobytes())
    return found
