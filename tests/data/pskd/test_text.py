"""Tokens and windows at their edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_service.data.pskd import DataError, char_vocab, decode_text, encode, lm_windows
from loader_service.errors import ArgumentError


@given(st.text(max_size=50))
@settings(max_examples=100)
def test_a_text_is_decoded_as_it_was_encoded(text: str) -> None:
    vocab = char_vocab(text)
    assert vocab == sorted(set(text))
    assert decode_text(encode(text, vocab), vocab) == text


def test_a_character_outside_the_vocabulary_is_named_with_its_position() -> None:
    with pytest.raises(DataError, match="'é' at position 2") as raised:
        encode("abéé", ["a", "b"])
    assert raised.value.code == "E9004"


@pytest.mark.parametrize("token", ["ab", ""])
def test_tokens_of_other_than_one_character_cannot_be_encoded_with(token: str) -> None:
    with pytest.raises(DataError, match="single"):
        encode("", ["a", token])
    assert decode_text([1, 0], ["a", token]) == token + "a"


@pytest.mark.parametrize("tokens", [[0, 2], [0, -1], [0, 2**64 - 1], [0, 2**70], [0.5], [True], ["0"]])
def test_tokens_that_are_none_of_the_vocabulary_are_refused(tokens: Any) -> None:
    for use in (lambda: decode_text(tokens, ["a", "b"]), lambda: lm_windows(tokens, 1, 1, 2)):
        with pytest.raises(DataError) as raised:
            use()
        assert raised.value.code == "E9004"


@pytest.mark.parametrize(("count", "dtype"), [(1, "u1"), (256, "u1"), (257, "u2"), (65537, "u4"), (2**32 + 1, "u8")])
def test_windows_have_the_narrowest_dtype(count: int, dtype: str) -> None:
    ((one, other),) = lm_windows([0, 0], 1, 1, count)
    assert one.dtype == other.dtype == np.dtype(dtype)


@given(st.integers(0, 20), st.integers(1, 8), st.integers(1, 25))
@settings(max_examples=150)
def test_a_window_exists_while_its_targets_do(count: int, seq: int, stride: int) -> None:
    windows = lm_windows(np.arange(count), seq, stride, 20)
    starts = [k * stride for k in range(count) if k * stride + seq + 1 <= count]
    assert [one.tolist() for one, _ in windows] == [list(range(start, start + seq)) for start in starts]
    assert [one.tolist() for _, one in windows] == [list(range(start + 1, start + seq + 1)) for start in starts]


@pytest.mark.parametrize(("seq", "stride", "vocab"), [(0, 1, 2), (1, 0, 2), (1, 1, -1), (1, 1, 2**64)])
def test_windows_of_no_length_no_stride_or_no_vocabulary_are_refused(seq: int, stride: int, vocab: int) -> None:
    with pytest.raises(ArgumentError):
        lm_windows([], seq, stride, vocab)
