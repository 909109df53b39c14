"""Batches of images: kernels, numpy and the scalar reading of the rules give the same bits."""

from __future__ import annotations

import struct
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loader_service.augment import Compose, GainOffset, image_kernel, next_int, next_normal, next_single
from loader_service.contract.collate import BatchContext, ImageBatchCollator, SlotError
from loader_service.contract.fused import set_compiled
from loader_service.data import synthetic_lines
from tests.compiled.builds import SHIPPED, bits, in_one_block, make_samples, tensors_of
from tests.vectors import reference_images
from tests.vectors.reference_images import ImageSample, Place
from tests.vectors.reference_random import Generator

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, for the infinities among the pixels

SIZES = [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33]
"""0, 1, 2 and around powers of two."""
OPTIONS: dict[str, list[Any]] = {"noise": [0.25], "blur": [0.75], "shear": [0.5, -1.0], "erase": [0.5, 2.0]}


@image_kernel
def flicker(image: Any, rng: Any, options: Any) -> None:
    """A gain of its own for each row, and a pixel that is put out: draws of three kinds, branches, two options."""
    channels, height, width = image.shape
    for channel in range(channels):
        for y in range(height):
            gain = np.float32(options[0]) + next_single(rng)
            shift = next_normal(rng) * np.float32(options[1])
            for x in range(width):
                image[channel, y, x] = image[channel, y, x] * gain + shift
            if width:
                image[channel, y, int(next_int(rng, np.uint64(width)))] = np.float32(0)


@image_kernel
def overflowing(image: Any, rng: Any, options: Any) -> None:
    """A number that grows to 2^64 in Python and wraps to 0 where it is compiled, whatever numpy's promotion is."""
    power = 1
    for _ in range(64):
        power *= 2
    flat = image.reshape(-1)
    for i in range(flat.size):
        flat[i] = np.float32(power)


AUGMENTATIONS: dict[str, Any] = {
    "none": None,
    **SHIPPED,
    "all": Compose(*SHIPPED.values()),
    "nothing composed": Compose(),
    "of one's own": flicker(0.5, 0.25),
    "own and shipped": Compose(SHIPPED["blur"], flicker(1, 2), SHIPPED["gain_offset"], Compose(SHIPPED["noise"])),
}
each = pytest.mark.parametrize("name", AUGMENTATIONS)


@each
@given(
    widths=st.lists(st.sampled_from(SIZES), min_size=1, max_size=6),
    height=st.sampled_from([0, 1, 2, 3, 5, 8]),
    channels=st.integers(1, 3),
    multiple=st.sampled_from([1, 3, 4, 16]),
    seed=st.integers(0, 99),
)
@settings(max_examples=40)
def test_kernels_and_numpy_give_the_same_bits(
    name: str, widths: list[int], height: int, channels: int, multiple: int, seed: int
) -> None:
    samples = make_samples(widths, channels, height, seed)
    collator = ImageBatchCollator(multiple, -1.5, AUGMENTATIONS[name])
    expected = bits(tensors_of("off", collator, samples, first_slot=5))
    for batch in (samples, in_one_block(samples)):
        assert bits(tensors_of("on", collator, batch, first_slot=5)) == expected
        assert bits(tensors_of("off", collator, batch, first_slot=5, fill=0)) == expected


@pytest.mark.parametrize("name", ["none", *SHIPPED, "all"])
@given(
    widths=st.lists(st.sampled_from(SIZES), min_size=1, max_size=4),
    height=st.sampled_from([1, 2, 5]),
    seed=st.integers(0, 99),
)
@example(widths=[33, 1, 0, 32], height=5, seed=0)
@settings(max_examples=20)
def test_kernels_give_the_bits_of_the_scalar_reading(name: str, widths: list[int], height: int, seed: int) -> None:
    samples = make_samples(widths, 2, height, seed)
    for sample in samples:  # plain Python raises where float32 would overflow
        np.clip(np.nan_to_num(sample.image), -9, 9, out=sample.image)
    steps = {"none": [], "all": list(SHIPPED)}.get(name, [name])
    named = [_options(step) for step in steps]

    def augment(image: reference_images.Image, rng: Generator) -> reference_images.Image:
        return reference_images.compose(image, rng, named)

    plain = [ImageSample(one.image.tolist(), one.target.tolist(), one.label) for one in samples]
    expected = reference_images.collate(plain, range(len(samples)), Place(-9, 3, 4), 4, 0.25, augment)
    found = tensors_of("on", ImageBatchCollator(4, 0.25, AUGMENTATIONS[name]), samples)
    shape, values = expected["images"]
    assert list(found["images"].shape) == shape
    assert found["images"].tobytes() == struct.pack(f"<{len(values)}f", *values)


def _options(name: str) -> dict[str, Any]:
    keys = {"noise": ["deviation"], "blur": ["strength"], "shear": ["largest", "fill"], "erase": ["largest", "fill"]}
    return {"name": name, **dict(zip(keys.get(name, []), OPTIONS.get(name, []), strict=True))}


@pytest.mark.parametrize("place", [0, 4, 8, 12, 16, 32, 60])
def test_a_batch_may_begin_at_any_address_of_a_float(place: int) -> None:
    """Stores that pass the caches need multiples of 16; elsewhere ordinary ones take their place."""
    samples = make_samples([9, 32, 1], 1, 4)
    collator = ImageBatchCollator(4, augmentation=GainOffset())
    expected = tensors_of("off", collator, samples)["images"]
    room = np.full(expected.nbytes + 128, 0xFF, np.uint8)
    begin = -room.ctypes.data % 64 + place
    tensors = tensors_of("on", collator, samples)
    tensors["images"] = np.ndarray(expected.shape, np.float32, room, begin)
    collator.write(samples, BatchContext(-9, 3, 4, np.arange(3)), tensors)
    assert bits({"images": tensors["images"]}) == bits({"images": expected})
    assert (room[:begin] == 0xFF).all()
    assert (room[begin + expected.nbytes :] == 0xFF).all()


def test_every_step_of_the_reference_workload_has_the_same_digest() -> None:
    digests = {}
    for mode in ("off", "on"):
        set_compiled(mode)
        stream = synthetic_lines(count=300, batch_size=16)
        digests[mode] = [stream.build(step).digest() for step in range(40)]
        digests[mode] += [stream.build(step, (2, 3)).digest() for step in range(5)]
    assert digests["on"] == digests["off"]


def test_a_kernel_that_gives_other_bits_than_python_is_refused() -> None:
    samples = make_samples([8], 1, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(Exception, match="gives other bits compiled than in Python") as caught:
            tensors_of("on", ImageBatchCollator(augmentation=overflowing()), samples)
    assert not isinstance(caught.value, SlotError)
