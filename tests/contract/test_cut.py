"""Shards of a batch that is there already: views whose rows, rank by rank, are those of the global batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from loader_service.contract.batch import Batch
from loader_service.contract.layout import EACH_ROW, WHOLE, Layout, ragged
from loader_service.contract.shards import Shard
from loader_service.contract.stream import Stream
from loader_service.errors import ArgumentError
from tests.contract.test_shards import PADDING, make_stream

Tensors = dict[str, NDArray[Any]]
B = 6


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
@settings(deadline=None, max_examples=200)
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
    """Where the padding of a shard is that of the whole batch, or there is none."""
    stream = make_stream(name)
    for step in (0, 6, 13):
        layout, batch = planned_and_built(stream, step)
        for rank in range(world):
            own = stream.build(step, (rank, world))
            cut = Batch(Shard(rank, world).cut(layout, dict(batch), batch.rows), step, batch.epoch, batch.step_in_epoch)
            assert cut.digest() == own.digest()
            assert own.rows == len(Shard(rank, world).rows(batch.rows))
