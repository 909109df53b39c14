"""Collation: known bytes, no byte of an earlier batch, and errors that name the slot."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from loader_service.contract.augment import GainOffset
from loader_service.contract.collate import BatchContext, ImageBatchCollator, SlotError
from loader_service.contract.rng import SampleRng
from loader_service.contract.sample import ImageSample
from loader_service.errors import ArgumentError
from tests.vectors.files import read_vectors

VECTORS: list[dict[str, Any]] = read_vectors("images")["batches"]

Tensors = dict[str, NDArray[Any]]


def make_sample(width: int, length: int = 2, channels: int = 1, height: int = 3, label: int = 5) -> ImageSample:
    image = np.arange(channels * height * width, dtype=np.float32).reshape(channels, height, width) + 1
    return ImageSample(image, np.arange(1, length + 1, dtype=np.int32), label)


def make_context(count: int) -> BatchContext:
    return BatchContext(seed=42, epoch=1, step_in_epoch=2, indices=np.arange(100, 100 + count))


def collate(collator: ImageBatchCollator, samples: Sequence[ImageSample], fill: int = 0) -> Tensors:
    """The batch in memory that holds `fill` in every byte before."""
    layout = collator.plan(samples, make_context(len(samples)))
    tensors = layout.views(np.full(layout.nbytes, fill, np.uint8))
    collator.write(samples, make_context(len(samples)), tensors)
    return tensors


def known_samples(case: dict[str, Any]) -> list[ImageSample]:
    samples = []
    for entry in case["samples"]:
        pixels = np.array(entry["pixels"], np.uint32).view(np.float32)
        image = pixels.reshape(case["channels"], case["height"], entry["width"])
        samples.append(ImageSample(image, np.array(entry["target"], np.int32), entry["label"]))
    return samples


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: f"C={case['channels']}-{case['augmentation']}")
def test_a_batch_is_the_known_one_bit_for_bit(case: dict[str, Any]) -> None:
    augmentation = GainOffset() if case["augmentation"] else None
    collator = ImageBatchCollator(case["width_multiple"], case["pad_value"], augmentation)
    samples = known_samples(case)
    layout = collator.plan(samples, make_context(len(samples)))
    tensors = layout.views(np.full(layout.nbytes, 0xFF, np.uint8))
    context = BatchContext(int(case["seed"]), case["epoch"], case["step"], np.array(case["indices"]))
    collator.write(samples, context, tensors)
    assert tensors.keys() == case["tensors"].keys()
    for name, expected in case["tensors"].items():
        tensor = tensors[name]
        assert (str(tensor.dtype), list(tensor.shape)) == (expected["dtype"], expected["shape"])
        flat = tensor.reshape(-1)
        values = flat.view(np.uint32) if "bits" in expected else flat
        assert values.tolist() == expected.get("bits", expected.get("values"))
        assert hashlib.sha256(tensor.tobytes()).hexdigest() == expected["sha256"]


def test_tensors_stand_in_the_order_of_the_contract() -> None:
    layout = ImageBatchCollator().plan([make_sample(4)], make_context(1))
    names = ["images", "widths", "targets", "target_lengths", "labels", "indices"]
    assert [spec.name for spec in layout.tensors] == names
    assert [str(spec.dtype) for spec in layout.tensors] == ["float32"] + ["int32"] * 5


@given(
    widths=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    lengths=st.lists(st.integers(0, 4), min_size=6, max_size=6),
    multiple=st.integers(1, 9),
    pad_value=st.sampled_from([0.0, -1.5, 7.0]),
    augment=st.booleans(),
)
def test_no_byte_of_an_earlier_batch_shows_through(
    widths: list[int], lengths: list[int], multiple: int, pad_value: float, augment: bool
) -> None:
    samples = [make_sample(width, length) for width, length in zip(widths, lengths, strict=False)]
    collator = ImageBatchCollator(multiple, pad_value, GainOffset() if augment else None)
    over_ones, over_zeros = collate(collator, samples, fill=0xFF), collate(collator, samples, fill=0)
    for name, tensor in over_ones.items():
        assert tensor.tobytes() == over_zeros[name].tobytes(), name
    padded = over_ones["images"].shape[3]
    assert padded % multiple == 0
    assert max(widths) <= padded < max(widths) + multiple


def test_images_stand_left_and_the_pad_value_right() -> None:
    samples = [make_sample(3), make_sample(5)]
    images = collate(ImageBatchCollator(width_multiple=4, pad_value=-1.5), samples, fill=0xFF)["images"]
    assert images.shape == (2, 1, 3, 8)
    assert np.array_equal(images[0, :, :, :3], samples[0].image)
    assert (images[0, :, :, 3:] == -1.5).all()
    assert np.array_equal(images[1, :, :, :5], samples[1].image)
    assert (images[1, :, :, 5:] == -1.5).all()


def test_targets_are_concatenated_and_may_be_empty() -> None:
    batch = collate(ImageBatchCollator(), [make_sample(2, 0), make_sample(2, 3), make_sample(2, 0)], fill=0xFF)
    assert batch["targets"].tolist() == [1, 2, 3]
    assert batch["target_lengths"].tolist() == [0, 3, 0]


def test_a_batch_without_any_target_has_an_empty_tensor() -> None:
    batch = collate(ImageBatchCollator(), [make_sample(2, 0), make_sample(4, 0)])
    assert batch["targets"].shape == (0,)
    assert batch["target_lengths"].tolist() == [0, 0]


def test_one_sample_makes_a_batch() -> None:
    batch = collate(ImageBatchCollator(width_multiple=4), [make_sample(5, label=-7)], fill=0xFF)
    assert batch["images"].shape == (1, 1, 3, 8)
    assert {name: batch[name].tolist() for name in ("widths", "labels", "indices")} == {
        "widths": [5],
        "labels": [-7],
        "indices": [100],
    }


def test_strided_and_read_only_samples_are_taken_as_they_are() -> None:
    wide = make_sample(8)
    strided = replace(wide, image=wide.image[:, :, ::2])
    strided.image.flags.writeable = False
    batch = collate(ImageBatchCollator(augmentation=GainOffset()), [strided])
    own = replace(wide, image=strided.image.copy())
    expected = collate(ImageBatchCollator(augmentation=GainOffset()), [own])
    assert batch["images"].tobytes() == expected["images"].tobytes()


def test_an_augmentation_sees_its_own_image_and_leaves_the_sample_alone() -> None:
    seen: list[tuple[tuple[int, ...], bool, int]] = []

    def watch(image: NDArray[np.float32], rng: SampleRng) -> None:
        seen.append((image.shape, image.flags.c_contiguous, rng.next_u64()))
        image[...] = -1

    samples = [make_sample(3), make_sample(6)]
    images = collate(ImageBatchCollator(pad_value=9.0, augmentation=watch), samples)["images"]
    assert [shape for shape, _, _ in seen] == [(1, 3, 3), (1, 3, 6)]
    assert all(contiguous for _, contiguous, _ in seen)
    assert len({number for _, _, number in seen}) == 2
    assert (images[0, :, :, :3] == -1).all()
    assert (images[0, :, :, 3:] == 9).all()
    assert all((sample.image > 0).all() for sample in samples)


def replace_any(sample: ImageSample, **changes: Any) -> ImageSample:
    """Samples that a dataset without type checks may give."""
    return replace(sample, **changes)


Spoil = Callable[[ImageSample], Any]
SPOILS: list[tuple[Spoil, str]] = [
    (lambda s: replace(s, image=s.image.astype(np.float64)), "float64"),
    (lambda s: replace(s, image=s.image.astype(np.uint8)), "uint8"),
    (lambda s: replace(s, image=s.image[0]), r"float32\[3, 4\]; it must be float32 \[C, H, W\]"),
    (lambda s: make_sample(4, channels=2), r"\[C, H\] = \[2, 3\] and the first has \[1, 3\]"),
    (lambda s: make_sample(4, height=5), r"\[C, H\] = \[1, 5\] and the first has \[1, 3\]"),
    (lambda s: replace(s, target=s.target.astype(np.int64)), r"the target is int64\[2\]"),
    (lambda s: replace(s, target=s.target.reshape(1, 2)), r"int32\[1, 2\]; it must be int32 \[L\]"),
    (lambda s: replace_any(s, target=[1, 2]), "must be an ImageSample of arrays"),
    (lambda s: (s.image, s.target, 3), "the sample is tuple"),
    (lambda s: None, "the sample is NoneType"),
    (lambda s: replace(s, label=2**31), "label 2147483648 does not fit the int32"),
    (lambda s: replace(s, label=-(2**31) - 1), "label -2147483649 does not fit"),
    (lambda s: replace_any(s, label="seven"), "label is 'seven'; it must be an integer"),
    (lambda s: replace_any(s, label=1.5), "label is 1.5; it must be an integer"),
    (lambda s: replace_any(s, label=[5]), r"label is \[5\]; it must be an integer"),
    (lambda s: replace_any(s, label=np.array([1, 2])), r"label is array\(\[1, 2\]\); it must be an integer"),
]


@pytest.mark.parametrize(("spoil", "match"), SPOILS, ids=[match for _, match in SPOILS])
def test_a_sample_that_does_not_fit_is_named_by_its_slot(spoil: Spoil, match: str) -> None:
    samples = [make_sample(4) for _ in range(5)]
    samples[3] = spoil(samples[3])
    with pytest.raises(SlotError, match=match) as caught:
        collate(ImageBatchCollator(), samples)
    assert caught.value.row == 3


def test_labels_that_are_all_sequences_are_named_too() -> None:
    for count in (1, 3):
        with pytest.raises(SlotError, match=r"row 0: label is \[5\]"):
            collate(ImageBatchCollator(), [replace_any(make_sample(4), label=[5])] * count)


def test_a_first_sample_that_is_no_image_is_named_too() -> None:
    samples: list[Any] = [None, make_sample(4)]
    with pytest.raises(SlotError, match="row 0"):
        ImageBatchCollator().plan(samples, make_context(len(samples)))


def test_a_dataset_index_beyond_int32_is_named_by_its_slot() -> None:
    samples = [make_sample(4), make_sample(4)]
    layout = ImageBatchCollator().plan(samples, make_context(len(samples)))
    tensors = layout.views(np.zeros(layout.nbytes, np.uint8))
    context = replace(make_context(2), indices=np.array([0, 2**31]))
    with pytest.raises(SlotError, match="dataset index 2147483648 does not fit") as caught:
        ImageBatchCollator().write(samples, context, tensors)
    assert caught.value.row == 1


def fail_on_width_6(image: NDArray[np.float32], rng: SampleRng) -> None:
    if image.shape[2] == 6:
        raise RuntimeError("too wide for me")


def test_an_augmentation_that_raises_is_named_by_its_slot() -> None:
    samples = [make_sample(4), make_sample(5), make_sample(6)]
    with pytest.raises(SlotError, match="too wide for me") as caught:
        collate(ImageBatchCollator(augmentation=fail_on_width_6), samples)
    assert caught.value.row == 2
    assert isinstance(caught.value.cause, RuntimeError)


@pytest.mark.parametrize("width_multiple", [0, -4])
def test_a_width_multiple_below_one_is_refused(width_multiple: int) -> None:
    with pytest.raises(ArgumentError, match=f"width_multiple is {width_multiple}"):
        ImageBatchCollator(width_multiple)
