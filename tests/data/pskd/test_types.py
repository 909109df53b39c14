"""A type's text: all forms that are read, and the place that is marked in those that are not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_service.data.pskd import DataError, Layout, Leaf, Record, Tuple, parse_type
from loader_service.data.pskd.types import layout_of


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("ℝ[]", Leaf(None, ())),
        ("Real[0]", Leaf(None, (0,))),
        ("idx[1][]", Leaf(1, ())),
        (f"idx[{2**64 - 1}][{2**63 - 1}]", Leaf(2**64 - 1, (2**63 - 1,))),
        ("ℝ[batch: 2, 3, élan_2: 0]", Leaf(None, (2, 3, 0))),
        ("ℝ[idx: 2, Real: 3]", Leaf(None, (2, 3))),
        ("((((ℝ[4]))))", Leaf(None, (4,))),
        ("(ℝ[], (idx[5][2], (ℝ[1])))", Tuple((Leaf(None, ()), Tuple((Leaf(5, (2,)), Leaf(None, (1,))))))),
    ],
)
def test_every_form_of_a_type_is_read(text: str, layout: Layout) -> None:
    assert parse_type(text) == layout


@given(st.lists(st.sampled_from(["", " ", "\t", "\n  ", "\r\n"]), min_size=24, max_size=24))
@settings(max_examples=50)
def test_blanks_may_stand_between_any_tokens(blanks: list[str]) -> None:
    tokens = [
        "(",
        "idx",
        "[",
        "64",
        "]",
        "[",
        "seq",
        ":",
        "8",
        "]",
        ",",
        "(",
        "Real",
        "[",
        "2",
        ",",
        "0",
        "]",
        ")",
        ")",
    ]
    text = "".join(blank + token for blank, token in zip(blanks, [*tokens, ""], strict=False))
    assert parse_type(text) == Tuple((Leaf(64, (8,)), Leaf(None, (2, 0))))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", 0),
        ("   ", 0),
        ("nat", 0),
        ("()", 1),
        ("((", 2),
        ("ℝ", 1),
        ("ℝ 4", 2),
        ("ℝ[D]", 3),
        ("ℝ[..., 4]", 2),
        ("ℝ[-1]", 2),
        ("ℝ[1.5]", 3),
        ("ℝ[4,]", 4),
        ("ℝ[4 4]", 4),
        ("ℝ[n: ]", 5),
        ("ℝ[٣]", 2),
        (f"ℝ[{2**63}]", 2),
        (f"ℝ[{'9' * 5000}]", 2),
        ("ℝ[4]  ℝ[4]", 6),
        ("ℝ[4],", 4),
        ("(ℝ[1],)x", 6),
        ("Real[4]]", 7),
        ("idx[0][2]", 4),
        (f"idx[{2**64}][2]", 4),
        ("idx[][2]", 4),
        ("idx[3]", 6),
        ("idx[n][2]", 4),
        ("idxs[3][2]", 0),
        ("params M", 0),
        ("\n\tℝ[\nD]", 6),
        ("ℝ[\0]", 2),
        ("\ud800", 0),
        (f"ℝ[{'1,' * 40}1]", 2 + 2 * 31),
    ],
)
def test_a_type_that_is_open_or_wrong_is_refused_with_the_place_marked(text: str, place: int) -> None:
    with pytest.raises(DataError) as raised:
        parse_type(text)
    *_, shown, mark = raised.value.message.split("\n")
    first = max(place - 60, 0)
    assert raised.value.code == "E9001"
    assert mark == " " * (place - first) + "^"
    assert [one for one in shown if one.isprintable()] == list(shown)
    assert len(shown) == len(text[first : place + 60])


def test_a_type_of_endless_depth_is_refused_in_few_words() -> None:
    with pytest.raises(DataError, match="64 deep") as raised:
        parse_type("(" * 100_000)
    assert len(raised.value.message) < 400


@given(st.text(st.sampled_from("()[],:.0123456789 ℝidxRealparamsM\n٣²\ud800"), max_size=40))
@settings(max_examples=300)
def test_any_text_is_a_layout_or_a_data_error(text: str) -> None:
    code = "E9001"
    try:
        assert isinstance(parse_type(text), Leaf | Tuple)
    except DataError as error:
        code = error.code
    assert code == "E9001"


def test_a_given_layout_must_have_the_leaves_that_its_type_tells() -> None:
    record = Record((("tokens", Leaf(9, (2,))), ("weight", Leaf(None, ()))))
    assert layout_of("(idx[9][2], ℝ[])", record) is record
    assert layout_of("params M", record) is record
    with pytest.raises(DataError) as raised:
        layout_of("(idx[9][2], ℝ[1])", record)
    assert raised.value.code == "E9005"
