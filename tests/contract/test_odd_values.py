"""Public names of the contract meet odd values: each is taken as its equal Python value, or refused by an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from loader_service import (
    Batch,
    BucketedSampler,
    ImageBatchCollator,
    Layout,
    Loader,
    MixingSampler,
    PadCollator,
    RngArray,
    SampleRng,
    SequentialSampler,
    Shard,
    ShuffledSampler,
    SlotError,
    StackCollator,
    Stream,
    derive,
    derive_slots,
    gray8_to_planar,
    mix,
    permute,
    ragged,
    rgb8_to_planar,
)
from loader_service.augment import Blur, Compose, Erase, GainOffset, Noise, Shear
from loader_service.contract.buffers import BufferPool, aligned_empty, size_class
from loader_service.contract.layout import align, carried_dtype
from loader_service.contract.rng import counter_block
from loader_service.errors import BuildError, LoaderServiceError

INTEGERS: list[Any] = [kind(1) for kind in (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32)]
INTEGERS += [np.int64(1), np.uint64(1), np.array(1), np.array(1, np.uint8), np.longlong(1)]
FLOATS: list[Any] = [np.float16(0.5), np.float32(0.5), np.float64(0.5), np.longdouble(0.5), np.array(0.5)]
ODD: list[Any] = [
    *INTEGERS,
    *FLOATS,
    True,
    False,
    np.True_,
    np.array(True),
    None,
    "1",
    "abc",
    b"1",
    1j,
    np.complex64(1),
    np.str_("1"),
    np.bytes_(b"1"),
    np.datetime64(1, "s"),
    np.timedelta64(1, "s"),
    np.void(b"1"),
    ml_dtypes.bfloat16(1),
    float("nan"),
    float("inf"),
    -float("inf"),
    np.float32("nan"),
    0,
    -1,
    2**63,
    2**64,
    -(2**64),
    10**400,
    10**5000,
    0.5,
    -0.0,
    1e300,
    [],
    [1],
    [1, [2]],
    [[1], [2, 3]],
    [None],
    (),
    {},
    {"a": 1},
    {1},
    range(2),
    object(),
    int,
    GainOffset,
    np.zeros(0),
    np.zeros((2, 2)),
    np.array([1, 2]),
    np.array([True, False]),
    np.array([object()]),
    np.ma.masked,
    np.ma.masked_array([1, 2], [True, False]),
    len,
    ...,
]


class Raising:
    """Every question of it fails."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError("repr")

    def __index__(self) -> int:
        raise RuntimeError("index")

    def __len__(self) -> int:
        raise RuntimeError("len")


ODD.append(Raising())

NUMBERS, LENGTHS = list(range(8)), [3, 1, 2, 3]
Call = Callable[[Any], Any]
OUT = np.empty(4, np.uint64)


def stream(**changes: Any) -> Stream:
    whole: dict[str, Any] = {"dataset": NUMBERS, "sampler": SequentialSampler(8, 2), "collator": StackCollator()}
    return Stream(**({"seed": 0} | whole | changes))


CALLS: dict[str, Call] = {
    "SampleRng": SampleRng,
    "next_int": lambda v: SampleRng(1).next_int(v),
    "RngArray": RngArray,
    "RngArray.next_int": lambda v: RngArray([1, 2]).next_int(v),
    "mix": mix,
    "derive seed": lambda v: derive(v, 0, 0, 0, 0),
    "derive epoch": lambda v: derive(0, v, 0, 0, 0),
    "derive step": lambda v: derive(0, 0, v, 0, 0),
    "derive slot": lambda v: derive(0, 0, 0, v, 0),
    "derive stream": lambda v: derive(0, 0, 0, 0, v),
    "derive_slots slots": lambda v: derive_slots(0, 0, 0, v, 0),
    "derive_slots stream": lambda v: derive_slots(0, 0, 0, [1], v),
    "derive_slots seed": lambda v: derive_slots(v, 0, 0, [1], 0),
    "counter_block key": lambda v: counter_block(v, OUT),
    "counter_block out": lambda v: counter_block(0, v),
    "counter_block room": lambda v: counter_block(0, OUT, v),
    "permute position": lambda v: permute(v, 5, 1),
    "permute n": lambda v: permute(0, v, 1),
    "permute key": lambda v: permute(3, 5, v),
    "SequentialSampler n": lambda v: SequentialSampler(v, 1),
    "SequentialSampler batch_size": lambda v: SequentialSampler(10, v),
    "SequentialSampler drop_last": lambda v: SequentialSampler(10, 3, v),
    "ShuffledSampler n": lambda v: ShuffledSampler(v, 1, 0),
    "ShuffledSampler batch_size": lambda v: ShuffledSampler(10, v, 0),
    "ShuffledSampler seed": lambda v: ShuffledSampler(10, 3, v),
    "ShuffledSampler drop_last": lambda v: ShuffledSampler(10, 3, 0, v),
    "indices epoch": lambda v: ShuffledSampler(10, 3, 0).indices(v, 0),
    "indices step": lambda v: ShuffledSampler(10, 3, 0).indices(0, v),
    "sequential indices epoch": lambda v: SequentialSampler(10, 3).indices(v, 0),
    "sequential indices step": lambda v: SequentialSampler(10, 3).indices(0, v),
    "BucketedSampler lengths": lambda v: BucketedSampler(v, 1, 1, 0),
    "BucketedSampler batch_size": lambda v: BucketedSampler(LENGTHS, v, 1, 0),
    "BucketedSampler pool_batches": lambda v: BucketedSampler(LENGTHS, 2, v, 0).indices(0, 0),
    "BucketedSampler seed": lambda v: BucketedSampler(LENGTHS, 2, 1, v).indices(0, 0),
    "BucketedSampler drop_last": lambda v: BucketedSampler(LENGTHS, 2, 1, 0, v),
    "bucketed indices epoch": lambda v: BucketedSampler(LENGTHS, 2, 1, 0).indices(v, 0),
    "bucketed indices step": lambda v: BucketedSampler(LENGTHS, 2, 1, 0).indices(0, v),
    "MixingSampler sizes": lambda v: MixingSampler(v, [1, 1], 2, 0),
    "MixingSampler size": lambda v: MixingSampler([v, 1], [1, 1], 2, 0).indices(0, 0),
    "MixingSampler shares": lambda v: MixingSampler([1, 1], v, 2, 0),
    "MixingSampler share": lambda v: MixingSampler([1, 1], [v, 1], 2, 0).indices(0, 0),
    "MixingSampler batch_size": lambda v: MixingSampler([1, 1], [1, 1], v, 0),
    "MixingSampler seed": lambda v: MixingSampler([1, 1], [1, 1], 2, v).indices(0, 0),
    "MixingSampler steps_per_epoch": lambda v: MixingSampler([1, 1], [1, 1], 2, 0, v),
    "mixing indices epoch": lambda v: MixingSampler([1, 1], [1, 1], 2, 0).indices(v, 0),
    "mixing indices step": lambda v: MixingSampler([1, 1], [1, 1], 2, 0).indices(0, v),
    "mixing sources": lambda v: MixingSampler([1, 1], [1, 1], 2, 0).sources(v),
    "StackCollator": StackCollator,
    "PadCollator multiple": lambda v: PadCollator(multiple=v),
    "PadCollator pad_value": lambda v: PadCollator(pad_value=v),
    "PadCollator pad_value of a part": lambda v: PadCollator(pad_value={"a": v}),
    "PadCollator name": lambda v: PadCollator(name=v),
    "ImageBatchCollator width_multiple": lambda v: ImageBatchCollator(width_multiple=v),
    "ImageBatchCollator pad_value": lambda v: ImageBatchCollator(pad_value=v),
    "ImageBatchCollator augmentation": lambda v: ImageBatchCollator(augmentation=v),
    "SlotError row": lambda v: SlotError(v, ValueError("text")),
    "SlotError cause": lambda v: SlotError(0, v),
    "GainOffset": GainOffset,
    "Noise": Noise,
    "Blur": Blur,
    "Shear": Shear,
    "Erase": Erase,
    "Compose": Compose,
    "Layout.plan": Layout.plan,
    "Layout.plan tensor": lambda v: Layout.plan([v]),
    "Layout.plan name": lambda v: Layout.plan([(v, "f4", [1])]),
    "Layout.plan dtype": lambda v: Layout.plan([("a", v, [1])]),
    "Layout.plan shape": lambda v: Layout.plan([("a", "f4", v)]),
    "Layout.plan size": lambda v: Layout.plan([("a", "f4", [v])]),
    "Layout.plan rows": lambda v: Layout.plan([("a", "f4", [1], v)]),
    "Layout.views": lambda v: Layout.plan([("a", "f4", [4])]).views(v),
    "Layout.from_wire": Layout.from_wire,
    "Layout.from_wire tensor": lambda v: Layout.from_wire([["a", "<f4", [1], v, "each"]]),
    "carried_dtype": lambda v: carried_dtype("a", v),
    "ragged": ragged,
    "align nbytes": align,
    "align unit": lambda v: align(1, v),
    "gray8 pixels": lambda v: gray8_to_planar(v, 1, 1, 1, 0.5, 0.5),
    "gray8 width": lambda v: gray8_to_planar(bytes(4), v, 1, 4, 0.5, 0.5),
    "gray8 height": lambda v: gray8_to_planar(bytes(4), 1, v, 1, 0.5, 0.5),
    "gray8 stride": lambda v: gray8_to_planar(bytes(4), 1, 2, v, 0.5, 0.5),
    "gray8 mean": lambda v: gray8_to_planar(bytes(4), 2, 2, 2, v, 0.5),
    "gray8 std": lambda v: gray8_to_planar(bytes(4), 2, 2, 2, 0.5, v),
    "gray8 out": lambda v: gray8_to_planar(bytes(4), 2, 2, 2, 0.5, 0.5, v),
    "rgb8 pixels": lambda v: rgb8_to_planar(v, 1, 1, 3, [0.5] * 3, [0.5] * 3),
    "rgb8 mean": lambda v: rgb8_to_planar(bytes(12), 2, 2, 6, v, [0.5] * 3),
    "rgb8 std": lambda v: rgb8_to_planar(bytes(12), 2, 2, 6, [0.5] * 3, v),
    "Shard rank": lambda v: Shard(v, 3),
    "Shard world": lambda v: Shard(0, v),
    "Shard.of": Shard.of,
    "Shard.rows": lambda v: Shard(0, 2).rows(v),
    "Batch": Batch,
    "Batch step": lambda v: Batch({}, v),
    "BufferPool": BufferPool,
    "size_class": size_class,
    "aligned_empty": lambda v: aligned_empty(v) if not isinstance(v, int) or v < 2**40 else None,
    "Stream dataset": lambda v: stream(dataset=v),
    "Stream sampler": lambda v: stream(sampler=v),
    "Stream collator": lambda v: stream(collator=v),
    "Stream seed": lambda v: stream(seed=v).build(0),
    "Stream transform": lambda v: stream(transform=v),
    "Stream version": lambda v: stream(version=v),
    "Stream.position": lambda v: stream().position(v),
    "Stream.build": lambda v: stream().build(v),
    "Stream.build shard": lambda v: stream().build(0, v),
    "Stream.layout": lambda v: stream().layout(v),
    "Stream.explain": lambda v: stream().explain(v),
    "Loader": Loader,
    "Loader start_step": lambda v: Loader(stream(), v),
    "Loader stop_step": lambda v: Loader(stream(), 0, v),
    "Loader shard": lambda v: Loader(stream(), shard=v),
    "Loader.get": lambda v: Loader(stream()).get(v),
    "BuildError": BuildError,
}


@pytest.mark.parametrize("name", CALLS)
def test_there_is_no_third_outcome(name: str) -> None:
    """Whatever is given, it is taken or refused by an error of ours, whose text can be shown."""
    told = []
    for value in ODD:
        try:
            CALLS[name](value)
        except LoaderServiceError as error:
            told.append(str(error))
    assert max(map(len, told), default=0) < 2000


SEVENS: list[Any] = [kind(7) for kind in (np.int8, np.uint8, np.int16, np.uint32, np.int64, np.uint64, np.array)]
EQUAL: dict[str, Call] = {
    "SampleRng": lambda v: SampleRng(v).next_u64(),
    "next_int": lambda v: [SampleRng(key).next_int(v) for key in range(9)],
    "RngArray.next_int": lambda v: RngArray(range(9)).next_int(v).tolist(),
    "mix": mix,
    "derive": lambda v: derive(v, v, v, v, v),
    "derive_slots": lambda v: derive_slots(v, v, v, [v, v], v).tolist(),
    "permute": lambda v: permute(v, 100, v),
    "permute n": lambda v: permute(3, v, 1),
    "sequential": lambda v: SequentialSampler(v, v),
    "shuffled": lambda v: (ShuffledSampler(v, v, v), ShuffledSampler(100, 7, v).indices(v, v).tolist()),
    "bucketed": lambda v: BucketedSampler([v] * 20, v, v, v).indices(v, 0).tolist(),
    "mixing": lambda v: MixingSampler([v, v], [v, 1], v, v, v).indices(v, 3).tolist(),
    "pad": lambda v: PadCollator(v, v),
    "images": lambda v: ImageBatchCollator(v, v),
    "augmentations": lambda v: (GainOffset(v, v, v), Noise(v), Shear(v, v)),
    "layout": lambda v: Layout.plan([("a", "f4", [v])]),
    "shard": lambda v: Shard(v, 9),
    "stream": lambda v: stream(seed=v).build(v).digest(),
    "loader": lambda v: next(Loader(stream(), v, 100)).digest(),
    "slot": lambda v: SlotError(v, ValueError("text")).row,
}


@pytest.mark.parametrize("name", EQUAL)
def test_an_integer_of_any_kind_gives_what_the_equal_int_gives(name: str) -> None:
    expected = EQUAL[name](7)
    for value in SEVENS:
        assert EQUAL[name](value) == expected
        assert repr(EQUAL[name](value)) == repr(expected)


NO_INTEGERS: list[Any] = [True, False, np.True_, 7.0, np.float64(7), "7", b"7", None, [7], np.array([7]), int, 7j]


@pytest.mark.parametrize("name", [name for name in EQUAL if name not in ("pad", "images", "augmentations")])
def test_what_is_no_integer_is_refused_where_an_integer_is_asked_for(name: str) -> None:
    for value in NO_INTEGERS:
        if name != "mix" or not isinstance(value, np.ndarray):
            with pytest.raises(LoaderServiceError):
                EQUAL[name](value)


REFUSED: list[tuple[str, Any]] = [
    ("ShuffledSampler seed", False),
    ("ShuffledSampler drop_last", "false"),
    ("ShuffledSampler drop_last", None),
    ("ShuffledSampler drop_last", float("nan")),
    ("ShuffledSampler drop_last", 1),
    ("SampleRng", 1.5),
    ("SampleRng", "5"),
    ("RngArray", [1.5]),
    ("derive_slots slots", [1.7]),
    ("Layout.plan dtype", "foo"),
    ("ImageBatchCollator pad_value", np.complex64(1 + 2j)),
    ("GainOffset", np.float16("inf")),
    ("MixingSampler shares", "13"),
    ("MixingSampler sizes", 5),
    ("BucketedSampler lengths", [[1], [2, 3]]),
    ("gray8 std", "0.5"),
    ("rgb8 mean", "000"),
    ("rgb8 mean", 0.5),
    ("BufferPool", 0),
    ("BufferPool", "a"),
    ("Stream transform", 5),
    ("Stream collator", None),
    ("Stream dataset", None),
    ("Loader", "x"),
    ("Loader shard", 5),
    ("Compose", GainOffset),
    ("permute key", None),
    ("permute n", 5.0),
    ("mix", "1"),
    ("next_int", None),
    ("StackCollator", 5),
]


@pytest.mark.parametrize(("name", "value"), REFUSED, ids=lambda part: str(part)[:30])
def test_what_would_be_taken_for_something_else_is_refused(name: str, value: Any) -> None:
    with pytest.raises(LoaderServiceError):
        CALLS[name](value)
