"""Row shards: those of all ranks make the global batch, with its random numbers, for every world size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from loader_service.contract.augment import GainOffset, Noise
from loader_service.contract.batch import Batch
from loader_service.contract.collate import ImageBatchCollator, PadCollator, StackCollator
from loader_service.contract.layout import EACH_ROW, WHOLE, Layout, ragged
from loader_service.contract.rng import SampleRng
from loader_service.contract.sample import ImageSample
from loader_service.contract.samplers import SequentialSampler, ShuffledSampler
from loader_service.contract.shards import Shard
from loader_service.contract.stream import Stream
from loader_service.data import SyntheticLines
from loader_service.errors import ArgumentError, BuildError
from loader_service.loader import Loader

B = 6
LINES = SyntheticLines(count=40, height=3, min_width=1, max_width=40)


@dataclass(frozen=True)
class Untold:
    """The same lines, whose widths nobody tells."""

    lines: SyntheticLines = LINES

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int, /) -> ImageSample:
        return self.lines[index]


@dataclass(frozen=True)
class Records:
    """Sample i: a vector, a nested number and a sequence of i mod 5 tokens."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        tokens = np.arange(index % 5, dtype=np.int16) + 1
        return {"vector": np.full(3, index, np.float32), "meta": {"id": index}, "tokens": tokens}


@dataclass(frozen=True)
class Vectors:
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int, /) -> tuple[Any, ...]:
        return np.full((2, 3), index, np.float64), index


def add_noise(sample: ImageSample, rng: SampleRng) -> ImageSample:
    """A transform that widens the image too, by 0 to 4 columns."""
    wide = np.pad(sample.image, ((0, 0), (0, 0), (0, rng.next_int(5))))
    return ImageSample(wide + rng.next_single(), sample.target, rng.next_int(100))


def mark_tokens(sample: dict[str, Any], rng: SampleRng) -> dict[str, Any]:
    return sample | {"mark": rng.next_u64() % 2**60}


def make_stream(name: str) -> Stream:
    sampler = ShuffledSampler(40, B, seed=5, drop_last=False)  # the last of 7 batches has 4 rows
    images = ImageBatchCollator(4, 0.5, augmentation=GainOffset())
    streams: dict[str, dict[str, Any]] = {
        "told": {"dataset": LINES, "collator": images},
        "untold": {"dataset": Untold(), "collator": ImageBatchCollator(8, 0.5, Noise())},
        "transformed": {"dataset": LINES, "collator": images, "transform": add_noise},
        "stacked": {"dataset": Vectors(), "collator": StackCollator()},
        "padded": {"dataset": Records(), "collator": PadCollator(4, 7), "transform": mark_tokens},
    }
    return Stream(sampler=sampler, seed=5, **streams[name])


PADDING = {"told": "global", "untold": "own", "transformed": "own", "stacked": "none", "padded": "own"}
every_stream = pytest.mark.parametrize("name", PADDING)


def widened(array: NDArray[Any], like: NDArray[Any], fill: float) -> NDArray[Any]:
    """`array` padded at the end of its last axes to those of `like`."""
    missing = [(0, 0), *((0, whole - own) for own, whole in zip(array.shape[1:], like.shape[1:], strict=True))]
    return np.pad(array, missing, constant_values=fill)


def concatenated(shards: list[Batch], whole: Batch, fill: float | None) -> dict[str, NDArray[Any]]:
    """The rows of all shards behind one another; padded again where each had a width of its own (`fill`)."""
    joined = {}
    for name, tensor in whole.items():
        parts = [shard[name] for shard in shards]
        if fill is not None and tensor.ndim > 1:
            parts = [widened(part, tensor, fill) for part in parts]
        joined[name] = np.concatenate(parts)
    return joined


@every_stream
@pytest.mark.parametrize("world", range(1, B + 3))
@pytest.mark.parametrize("step", [0, 6, 13])
def test_the_shards_of_all_ranks_make_the_global_batch(name: str, world: int, step: int) -> None:
    stream = make_stream(name)
    whole = stream.build(step)
    shards = [stream.build(step, (rank, world)) for rank in range(world)]
    fill = {"padded": 7.0}.get(name, 0.5) if PADDING[name] == "own" else None
    joined = concatenated(shards, whole, fill)
    assert {name: array.dtype for name, array in joined.items()} == {name: a.dtype for name, a in whole.items()}
    assert Batch(joined, whole.step, whole.epoch, whole.step_in_epoch).digest() == whole.digest()
    if PADDING[name] == "global":
        assert {shard["images"].shape[1:] for shard in shards} == {whole["images"].shape[1:]}


@every_stream
def test_the_padding_of_shards_is_declared_and_part_of_the_fingerprint(name: str) -> None:
    stream = make_stream(name)
    assert stream.shard_padding == stream.description["shard_padding"] == PADDING[name]


@given(st.integers(1, 300), st.integers(1, 300))
def test_rows_of_all_ranks_follow_one_another(batch_size: int, world: int) -> None:
    rows = [Shard(rank, world).rows(batch_size) for rank in range(world)]
    assert [row for part in rows for row in part] == list(range(batch_size))
    assert {len(part) for part in rows} <= {batch_size // world, -(-batch_size // world)}
    assert rows[-1].start == (world - 1) * batch_size // world


def test_a_rank_without_rows_has_a_batch_without_rows() -> None:
    whole = make_stream("told").build(0)
    shard = make_stream("told").build(0, (0, 8))
    assert {name: len(tensor) for name, tensor in shard.items()} == dict.fromkeys(whole, 0)
    assert shard["images"].shape[1:] == whole["images"].shape[1:]
    assert make_stream("untold").build(0, (0, 8))["images"].shape == (0, 1, 3, 0)
    assert (shard.step, shard.epoch, shard.step_in_epoch) == (0, 0, 0)


@pytest.mark.parametrize("fill", [0x00, 0xFF])
def test_a_shard_has_no_byte_of_earlier_memory(fill: int) -> None:
    stream = make_stream("told")
    for rank in range(4):
        used = stream.build_into(3, lambda layout: np.full(layout.nbytes, fill, np.uint8), (rank, 4))
        assert used.digest() == stream.build(3, (rank, 4)).digest()


def test_a_loader_reads_the_rows_of_its_rank() -> None:
    stream = make_stream("told")
    with Loader(stream, 2, 9, shard=(1, 3)) as loader:
        assert [batch.digest() for batch in loader] == [stream.build(step, (1, 3)).digest() for step in range(2, 9)]


class Spoilt(SyntheticLines):
    """Index 10 cannot be read; the image of 8 has another height than the others."""

    def __getitem__(self, index: int, /) -> ImageSample:
        if index == 10:
            raise OSError("cannot read it")
        sample = super().__getitem__(index)
        return ImageSample(sample.image[:, :-1], sample.target) if index == 8 else sample


def refuse_wide(image: NDArray[np.float32], rng: SampleRng) -> None:
    if image.shape[2] > 250:
        raise ArithmeticError("too wide")


def test_an_error_in_a_shard_names_the_slot_of_the_global_batch() -> None:
    stream = Stream(Spoilt(count=40, height=3), SequentialSampler(40, B), ImageBatchCollator(), seed=0)
    for shard in ((1, 2), (2, 3), (4, 6)):
        with pytest.raises(BuildError, match=r"step 1 could not be built at slot 4 \(dataset index 10\): OSError"):
            stream.build(1, shard)
    with pytest.raises(BuildError, match=r"at slot 2 \(dataset index 8\): ValueError: the image has"):
        stream.build(1, (0, 2))
    assert stream.build(1, (2, 6))["indices"].tolist() == [8]  # alone in its shard it fits


def test_an_error_of_an_augmentation_in_a_shard_names_the_slot_too() -> None:
    wide = SyntheticLines(count=40, height=3, min_width=10, max_width=400)
    first = int(np.flatnonzero(wide.widths(np.arange(40)) > 250)[0])
    step, slot = divmod(first, B)
    stream = Stream(wide, SequentialSampler(40, B), ImageBatchCollator(augmentation=refuse_wide), seed=0)
    with pytest.raises(BuildError, match=rf"at slot {slot} \(dataset index {first}\): ArithmeticError"):
        stream.build(step, (slot, B))


BAD: list[tuple[Any, str]] = [
    ((-1, 2), r"rank is -1; it must lie in \[0, 1\]"),
    ((2, 2), "rank is 2"),
    ((0, 0), "world size is 0"),
    ((0, -1), "world size is -1"),
    ((0.5, 2), r"rank is 0\.5; it must be an integer"),
    (("0", 2), "rank is '0'; it must be an integer"),
    ((0, None), "world size is None"),
    (5, r"shard is 5; it must be \(rank, world size\)"),
    ((0, 1, 2), r"shard is \(0, 1, 2\); it must be \(rank, world size\)"),
]


@pytest.mark.parametrize(("shard", "match"), BAD, ids=[match for _, match in BAD])
def test_a_shard_that_is_none_is_refused(shard: Any, match: str) -> None:
    for build in (lambda: make_stream("told").build(0, shard), lambda: Loader(make_stream("told"), shard=shard)):
        with pytest.raises(ArgumentError, match=match):
            build()


def test_numpy_ranks_count_as_ints() -> None:
    rank: Any = np.int8(3)
    world: Any = np.int8(4)
    assert Shard(rank, world).rows(1000) == range(750, 1000)
    assert Shard(rank, world) == Shard(3, 4)


Tensors = dict[str, NDArray[Any]]


def filled(layout: Layout, lengths: list[int]) -> Tensors:
    """Tensors of a layout, read-only: tensor "n" holds the lengths, every other number is its own place."""
    buffer = np.zeros(layout.nbytes, np.uint8)
    views = layout.views(buffer)
    for name, view in views.items():
        view[...] = lengths if name == "n" else np.arange(view.size).reshape(view.shape)
    buffer.flags.writeable = False
    return layout.views(buffer)


def joined(layout: Layout, parts: list[Tensors]) -> Tensors:
    """The global tensors again: rows behind one another, and of what is whole any rank's."""
    return {
        spec.name: parts[0][spec.name] if spec.rows == WHOLE else np.concatenate([part[spec.name] for part in parts])
        for spec in layout.tensors
    }


def check_parts(layout: Layout, tensors: Tensors, rows: int, world: int) -> list[Tensors]:
    """Cut for every rank, and check that it is the batch again, in views of it that are no more writeable."""
    parts = [Shard(rank, world).cut(layout, tensors, rows) for rank in range(world)]
    for part in parts:
        assert list(part) == list(tensors)
        for name, tensor in part.items():
            assert np.shares_memory(tensor, tensors[name]) or tensor.size == 0
            assert tensor.flags.writeable == tensors[name].flags.writeable
            assert (tensor.dtype, tensor.shape[1:]) == (tensors[name].dtype, tensors[name].shape[1:])
            assert tensor.base is not None
    whole = joined(layout, parts)
    assert all(np.array_equal(whole[name], tensors[name]) for name in tensors)
    return parts


plans = st.lists(
    st.tuples(
        st.sampled_from(["|b1", "|u1", "<i2", "<f4", "<c16"]),
        st.lists(st.integers(0, 3), max_size=2),
        st.sampled_from([EACH_ROW, WHOLE, ragged("n")]),
    ),
    max_size=5,
)


@given(st.lists(st.integers(0, 4), max_size=9), st.integers(1, 12), plans, st.sampled_from(["i1", "u1", "i4", "u8"]))
@settings(max_examples=200)
def test_the_parts_of_all_ranks_make_the_batch(
    lengths: list[int], world: int, planned: list[tuple[str, list[int], str]], dtype: str
) -> None:
    first = {EACH_ROW: len(lengths), WHOLE: 3, ragged("n"): sum(lengths)}
    told = [(f"t{place}", kind, [first[rows], *rest], rows) for place, (kind, rest, rows) in enumerate(planned)]
    layout = Layout.plan([*told, ("n", dtype, [len(lengths)])])
    tensors = filled(layout, lengths)
    for rank, part in enumerate(check_parts(layout, tensors, len(lengths), world)):
        rows = Shard(rank, world).rows(len(lengths))
        assert part["n"].tolist() == lengths[rows.start : rows.stop]
        for name, _, _, how in told:
            of_a_row = {EACH_ROW: len(rows), WHOLE: 3, ragged("n"): sum(part["n"].tolist())}
            assert len(part[name]) == of_a_row[how]


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 5, 7, 8, 9])
@pytest.mark.parametrize("world", [1, 2, 3, 12])
def test_more_ranks_than_rows_leave_some_without(rows: int, world: int) -> None:
    lengths = [(3 * row + 1) % 5 for row in range(rows)]
    layout = Layout.plan([("r", "i4", [sum(lengths), 2], ragged("n")), ("n", "i4", [rows]), ("x", "f4", [rows])])
    parts = check_parts(layout, filled(layout, lengths), rows, world)
    assert sorted(len(part["x"]) for part in parts) == sorted(
        len(Shard(rank, world).rows(rows)) for rank in range(world)
    )


def test_what_is_writeable_stays_so() -> None:
    layout = Layout.plan([("x", "i4", [4]), ("w", "i4", [4], WHOLE)])
    tensors = layout.views(np.zeros(layout.nbytes, np.uint8))
    check_parts(layout, tensors, 4, 2)
    Shard(1, 2).cut(layout, tensors, 4)["x"][:] = 7
    assert tensors["x"].tolist() == [0, 0, 7, 7]


UNTOLD: list[tuple[str, list[tuple[Any, ...]], str]] = [
    ("no axis", [("x", "i4", [])], r"tensor 'x' has the shape \[\] in a batch of 4 rows"),
    ("fewer", [("x", "i4", [3, 4])], r"tensor 'x' has the shape \[3, 4\] in a batch of 4 rows, and cannot be cut"),
    ("more", [("x", "i4", [5])], r"tensor 'x' has the shape \[5\] .* let the collator say in Layout.plan"),
    ("no lengths' axis", [("x", "i4", [0], ragged("n")), ("n", "i4", [])], "tensor 'x' .* 'n' does not say how long"),
    ("fewer lengths", [("x", "i4", [0], ragged("n")), ("n", "i4", [3])], r"must hold integers, \[4\], of that sum"),
    ("lengths of two axes", [("x", "i4", [0], ragged("n")), ("n", "i4", [4, 1])], "'n' does not say"),
    ("lengths that are no integers", [("x", "i4", [0], ragged("n")), ("n", "f4", [4])], "'n' does not say"),
    ("another sum", [("x", "i4", [2, 3], ragged("n")), ("n", "i4", [4])], r"tensor 'x' has the shape \[2, 3\], and"),
    ("ragged without an axis", [("x", "i4", [], ragged("n")), ("n", "i4", [4])], r"tensor 'x' has the shape \[\]"),
    ("its own lengths", [("x", "i4", [3], ragged("x"))], "tensor 'x' .* 'x' does not say how long each of its 4 rows"),
]


@pytest.mark.parametrize(("planned", "told"), [case[1:] for case in UNTOLD], ids=[case[0] for case in UNTOLD])
def test_a_tensor_of_which_the_rows_cannot_be_told_is_an_error_that_names_it(planned: Any, told: str) -> None:
    layout = Layout.plan(planned)
    tensors = layout.views(np.zeros(layout.nbytes, np.uint8))
    for rank in range(3):
        with pytest.raises(ArgumentError, match=told):
            Shard(rank, 3).cut(layout, tensors, 4)
    assert Shard().cut(layout, tensors, 4) == tensors, "one rank reads all, whatever lies how"


# --- the shipped collators -------------------------------------------------------------------------------


def planned_and_built(stream: Stream, step: int) -> tuple[Layout, Batch]:
    """The layout as it comes over the wire, and the batch in memory of it."""
    return Layout.from_wire(stream.layout(step).to_wire()), stream.build(step)


@pytest.mark.parametrize("name", PADDING)
@pytest.mark.parametrize("world", range(1, B + 3))
@pytest.mark.parametrize("step", [0, 6, 13])
def test_the_layout_of_every_collator_can_be_cut(name: str, world: int, step: int) -> None:
    layout, batch = planned_and_built(make_stream(name), step)
    assert batch.rows == len(batch["indices"])
    check_parts(layout, dict(batch), batch.rows, world)


@pytest.mark.parametrize("name", [name for name, padding in PADDING.items() if padding in ("global", "none")])
@pytest.mark.parametrize("world", range(1, B + 3))
def test_a_rank_of_the_service_reads_what_a_rank_in_process_builds(name: str, world: int) -> None:
    """Streams whose shards are padded as the whole batch is, or not at all."""
    stream = make_stream(name)
    for step in (0, 6, 13):
        layout, batch = planned_and_built(stream, step)
        for rank in range(world):
            own = stream.build(step, (rank, world))
            cut = Batch(Shard(rank, world).cut(layout, dict(batch), batch.rows), step, batch.epoch, batch.step_in_epoch)
            assert cut.digest() == own.digest()
            assert own.rows == len(Shard(rank, world).rows(batch.rows))
