"""The gain-and-offset augmentation: in float32 throughout, in place, and a function of its generator alone."""

from __future__ import annotations

import hashlib
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from loader_service.contract.augment import Blur, Compose, Erase, GainOffset, Noise, Shear
from loader_service.contract.collate import BatchContext, ImageBatchCollator, SlotError
from loader_service.contract.fingerprint import describe
from loader_service.contract.rng import RngArray, SampleRng, derive
from loader_service.contract.sample import ImageSample
from loader_service.errors import ArgumentError

words = st.integers(0, 2**64 - 1)


@given(words)
def test_every_operation_is_rounded_to_float32(key: int) -> None:
    pixels = np.linspace(-2, 2, 24, dtype=np.float32).reshape(2, 3, 4)
    rng = SampleRng(key)
    gain = np.float32(np.float32(0.75) + np.float32(np.float32(0.5) * rng.next_single()))
    offset = np.float32(rng.next_normal() * np.float32(0.125))
    expected = [np.float32(np.float32(pixel * gain) + offset) for pixel in pixels.reshape(-1)]
    image = pixels.copy()
    GainOffset()(image, SampleRng(key))
    assert image.dtype == np.float32
    assert image.reshape(-1).tolist() == [float(pixel) for pixel in expected]


@given(words)
def test_the_gain_stays_in_its_range(key: int) -> None:
    image = np.array([[[0, 1]]], np.float32)
    GainOffset(offset_deviation=0)(image, SampleRng(key))
    assert image[0, 0, 0] == 0
    assert 0.75 <= image[0, 0, 1] < 1.25


def test_without_span_and_deviation_the_image_stays_as_it_is() -> None:
    image = np.linspace(0, 1, 8, dtype=np.float32).reshape(1, 2, 4)
    before = image.copy()
    GainOffset(gain_low=1, gain_span=0, offset_deviation=0)(image, SampleRng(3))
    assert np.array_equal(image, before)


def test_it_survives_pickle_and_its_fields_are_its_description() -> None:
    augmentation = GainOffset(gain_low=0.5)
    assert pickle.loads(pickle.dumps(augmentation)) == augmentation
    assert describe(augmentation) != describe(GainOffset())


Image = NDArray[np.float32]
ALL: list[Any] = [GainOffset(), Noise(), Blur(), Shear(), Erase(), Compose(Shear(), Blur(), Erase(), Noise())]
NEUTRAL: list[Any] = [GainOffset(1, 0, 0), Noise(0), Blur(0), Shear(0), Erase(0), Compose()]
SHAPES = [(1, 1, 0), (1, 1, 1), (1, 3, 2), (2, 1, 5), (3, 4, 1), (2, 5, 7), (1, 32, 33), (0, 2, 3), (1, 0, 4)]

each = pytest.mark.parametrize("augmentation", ALL, ids=lambda a: type(a).__name__)


def make_image(shape: tuple[int, ...]) -> Image:
    return np.random.default_rng(7).random(shape, np.float32)


def edited(augmentation: Any, image: Image, key: int) -> Image:
    image = image.copy()
    assert augmentation(image, SampleRng(key)) is None
    return image


GOLDEN = {
    "GainOffset": "b5da66806187431bfed8567d46f045395f338e6d2379cb0a158964f7720374c2",
    "Noise": "6db22fa29f6934217521377d0f1de252efdd27c85435d1ea551f12cf3a8bc4b6",
    "Blur": "2e226aeabacab303dac324d0f519957ce5081ba0f6cf982d0e2cbb6a3b37a545",
    "Shear": "b747b385035b28fe9e8498bbc30193931c0c4427fd8396bec4225bc61f0d5bbe",
    "Erase": "0a4810f1a9b9fa17b8e716f83bd6395a4d4e9287e061d75a461942429c983d0f",
    "Compose": "bc07bdba4a58ea63f2df9ef4dfc4f266a258319f08075fdcda1e6d83df21ddad",
}


@each
def test_the_bits_are_the_known_ones(augmentation: Any) -> None:
    image = (np.arange(2 * 9 * 21, dtype=np.float32) / np.float32(378)).reshape(2, 9, 21)
    hasher = hashlib.sha256()
    for key in (0, 1, 2**64 - 1):
        hasher.update(edited(augmentation, image, key).astype("<f4").tobytes())
    assert hasher.hexdigest() == GOLDEN[type(augmentation).__name__]


@each
@given(st.lists(st.integers(0, 2**64 - 1), max_size=8))
@settings(max_examples=20)
def test_numbers_drawn_for_many_at_once_are_those_of_each(augmentation: Any, keys: list[int]) -> None:
    drawn = augmentation.draw(RngArray(np.array(keys, np.uint64)))
    assert len(drawn) == augmentation.draws
    for row, key in enumerate(keys):
        alone = augmentation.draw(SampleRng(key))
        assert [float(values[row]) for values in drawn] == [float(value) for value in alone]
        assert [values.dtype for values in drawn] == [np.asarray(value).dtype for value in alone] or any(
            isinstance(value, int) for value in alone
        )


@each
def test_in_a_batch_each_image_is_edited_as_it_would_be_alone(augmentation: Any) -> None:
    widths = [0, 1, 2, 7, 8, 30]
    samples = [ImageSample(make_image((2, 5, width)), np.zeros(0, np.int32)) for width in widths]
    context = BatchContext(9, 3, 4, np.arange(len(widths)), first_slot=11)
    collator = ImageBatchCollator(4, -1.0, augmentation)
    layout = collator.plan(samples, context)
    tensors = layout.views(np.full(layout.nbytes, 0xFF, np.uint8))
    collator.write(samples, context, tensors)
    for row, (sample, width) in enumerate(zip(samples, widths, strict=True)):
        expected = edited(augmentation, sample.image, derive(9, 3, 4, 11 + row, 1))
        assert tensors["images"][row, :, :, :width].tobytes() == expected.tobytes()
        assert (tensors["images"][row, :, :, width:] == -1).all()


@each
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_images_of_every_size_are_edited_through_any_strides(augmentation: Any, shape: tuple[int, ...]) -> None:
    image = make_image(shape)
    alone = edited(augmentation, image, 5)
    room = np.full((shape[0], shape[1] + 2, 2 * shape[2] + 3), 9, np.float32)
    view = room[:, 1:-1, 1 : 2 * shape[2] + 1 : 2]
    view[...] = image
    augmentation(view, SampleRng(5))
    assert np.array_equal(view, alone)
    assert np.isfinite(alone).all()
    view[...] = 9
    assert (room == 9).all()


@pytest.mark.parametrize("augmentation", NEUTRAL, ids=repr)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_no_strength_leaves_the_image_as_it_is(augmentation: Any, shape: tuple[int, ...]) -> None:
    image = make_image(shape)
    for key in range(5):
        assert np.array_equal(edited(augmentation, image, key), image)


@each
def test_another_key_gives_another_image(augmentation: Any) -> None:
    image = make_image((1, 32, 40))
    assert len({edited(augmentation, image, key).tobytes() for key in range(20)}) > 10


def test_noise_has_its_deviation_and_no_bias() -> None:
    noise = edited(Noise(0.5), np.zeros((1, 100, 1000), np.float32), 3)
    assert abs(float(noise.mean())) < 4 * 0.5 / np.sqrt(100_000)
    assert abs(float(noise.std()) - 0.5) < 0.01
    assert abs(float(noise.max())) <= 0.5 * 1020 / 209


def test_noise_of_a_pixel_is_eight_bytes_of_the_counter() -> None:
    noise = edited(Noise(0.25), np.zeros((1, 2, 3), np.float32), 8).reshape(-1)
    rng = SampleRng(SampleRng(8).next_u64())
    for value in noise.tolist():
        total = np.float32(sum(rng.next_u64().to_bytes(8, "little")))
        assert value == (total - np.float32(1020)) * np.float32(0.25 / np.sqrt(43690))


@pytest.mark.parametrize("key", range(5))
def test_blur_weighs_the_neighbours(key: int) -> None:
    image = make_image((2, 3, 9))
    a = np.float32(0.8) * SampleRng(key).next_single()
    left = np.concatenate([image[:, :, :1], image[:, :, :-1]], axis=2)
    right = np.concatenate([image[:, :, 1:], image[:, :, -1:]], axis=2)
    blurred = edited(Blur(0.8), image, key)
    assert np.array_equal(blurred, image * (np.float32(1) - a) + (left + right) * (a * np.float32(0.5)))
    assert image.min() <= blurred.min() <= blurred.max() <= image.max()


@pytest.mark.parametrize(("key", "largest"), [(0, 0.3), (1, 0.3), (2, 2.0), (3, 50.0), (4, 1000.0)])
def test_shear_moves_each_row_by_whole_columns(key: int, largest: float) -> None:
    image = make_image((2, 8, 11))
    slope = np.float32(largest) * (SampleRng(key).next_single() * np.float32(2) - np.float32(1))
    expected = np.full(image.shape, 5, np.float32)
    for y in range(8):
        shift = int(np.rint(slope * np.float32(4 - y)))
        for x in range(11):
            if 0 <= x - shift < 11:
                expected[:, y, x] = image[:, y, x - shift]
    assert np.array_equal(edited(Shear(largest, fill=5), image, key), expected)


@given(st.integers(0, 2**64 - 1), st.floats(0, 1), st.integers(1, 20), st.integers(1, 20))
@settings(max_examples=60)
def test_erase_fills_one_rectangle_no_larger_than_allowed(key: int, largest: float, height: int, width: int) -> None:
    filled = edited(Erase(largest, fill=1), np.zeros((2, height, width), np.float32), key)
    rows, columns = filled[0].any(axis=1).nonzero()[0], filled[0].any(axis=0).nonzero()[0]
    assert len(rows) <= largest * height + 1e-6
    assert len(columns) <= largest * width + 1e-6
    assert np.array_equal(filled[0], filled[1])
    assert filled[0].sum() == len(rows) * len(columns)
    if len(rows):
        assert np.ptp(rows) + 1 == len(rows)
        assert np.ptp(columns) + 1 == len(columns)


def test_a_composition_draws_and_edits_in_its_order() -> None:
    image, rng = make_image((1, 6, 9)), SampleRng(4)
    step_by_step = image.copy()
    drawn = [one.draw(rng) for one in (GainOffset(), Noise(), Erase())]
    for one, numbers in zip((GainOffset(), Noise(), Erase()), drawn, strict=True):
        one.apply(step_by_step, *numbers)
    assert np.array_equal(edited(Compose(GainOffset(), Noise(), Erase()), image, 4), step_by_step)
    assert not np.array_equal(edited(Compose(Erase(), Noise(), GainOffset()), image, 4), step_by_step)


def test_a_composition_may_hold_another() -> None:
    image = make_image((1, 6, 9))
    nested, flat = Compose(Compose(GainOffset(), Erase()), Noise()), Compose(GainOffset(), Erase(), Noise())
    assert nested.draws == flat.draws == 7
    assert np.array_equal(edited(nested, image, 1), edited(flat, image, 1))


def test_parameters_and_order_enter_the_description() -> None:
    kinds = [
        *(
            Noise(),
            Noise(0.1),
            Blur(),
            Blur(0.1),
            Shear(),
            Shear(0.1),
            Shear(fill=1),
            Erase(),
            Erase(0.1),
            Erase(fill=1),
        ),
        *(Compose(Noise(), Blur()), Compose(Blur(), Noise()), Compose(Noise()), Compose(Noise(0.1), Blur()), Compose()),
    ]
    assert len({str(describe(kind)) for kind in kinds}) == len(kinds)
    fill: Any = np.int32(1)
    assert describe(Shear(np.float64(0.5), fill)) == describe(Shear(0.5, 1)) == describe(Shear(0.5, 1.0))
    assert describe(Compose(Noise(), Blur())) == describe(Compose(Noise(), Blur()))


@each
def test_they_survive_pickle(augmentation: Any) -> None:
    again = pickle.loads(pickle.dumps(augmentation))
    assert repr(again) == repr(augmentation)
    assert np.array_equal(edited(again, make_image((1, 5, 9)), 3), edited(augmentation, make_image((1, 5, 9)), 3))


FIELDS = [(Noise, "deviation"), (Blur, "strength"), (Shear, "largest"), (Shear, "fill"), (Erase, "largest")]


@pytest.mark.parametrize(("kind", "field"), FIELDS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e39, 10**400, "1", None, True, 1j])
def test_a_field_that_is_no_finite_number_is_refused(kind: Any, field: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=f"{field} is"):
        kind(**{field: value})


@pytest.mark.parametrize(
    ("kind", "field", "value", "high"),
    [(Blur, "strength", -0.1, 1), (Blur, "strength", 1.1, 1), (Erase, "largest", 2, 1), (Shear, "largest", 1001, 1000)],
)
def test_a_strength_outside_its_range_is_refused(kind: Any, field: str, value: float, high: int) -> None:
    with pytest.raises(ArgumentError, match=rf"{field} is {float(value)}; it must lie in \[0, {high}\]"):
        kind(**{field: value})


@pytest.mark.parametrize("part", [len, None, GainOffset], ids=str)
def test_what_is_no_augmentation_cannot_be_composed(part: Any) -> None:
    if part is GainOffset:
        assert Compose(part()).draws == 2
        return
    with pytest.raises(ArgumentError, match="which has no draws, draw, apply; give objects such as GainOffset"):
        Compose(part)


def halve(image: Image, rng: SampleRng) -> Image:
    return image[:, :, ::2]


class Halve:
    """Drawn for all at once, and wrong in the same way."""

    def draw(self, rng: Any) -> tuple[Any, ...]:
        return (rng.next_single(),)

    def apply(self, image: Image, number: Any) -> Image:
        return image[:, :, ::2]

    def __call__(self, image: Image, rng: SampleRng) -> Image:
        return self.apply(image, *self.draw(rng))


@pytest.mark.parametrize("augmentation", [halve, Halve()], ids=["function", "class"])
def test_an_augmentation_that_returns_another_shape_is_named(augmentation: Any) -> None:
    samples = [ImageSample(make_image((1, 3, width)), np.zeros(0, np.int32)) for width in (1, 4)]
    context = BatchContext(0, 0, 0, np.arange(2))
    layout = ImageBatchCollator().plan(samples, context)
    with pytest.raises(
        SlotError, match=r"[Hh]alve.* returned .*\[1, 3, 2\] for an image of \[1, 3, 4\].*transform"
    ) as e:
        ImageBatchCollator(augmentation=augmentation).write(samples, context, layout.views(np.zeros(9999, np.uint8)))
    assert e.value.row == 1
