"""Texts as tokens, one token a character, and windows of them for language models.

Owns `char_vocab`, `encode`, `decode_text` and `lm_windows`. Invariant: a vocabulary is the sorted distinct code
points, so index i means vocab[i] on every machine. Fails with DataError E9004 and the place.

    window k is (tokens[k·stride .. +seq], tokens[k·stride + 1 .. +seq]), while k·stride + seq + 1 <= len(tokens)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.checks import checked_int
from loader_service.data.pskd.layout import idx_width
from loader_service.errors import DataError

__all__ = ["char_vocab", "decode_text", "encode", "lm_windows"]


def _narrowest(vocabulary: int) -> np.dtype[np.unsignedinteger]:
    return np.dtype(f"<u{idx_width(max(vocabulary, 1))}")


def _integers(tokens: Sequence[int] | NDArray[np.integer]) -> NDArray[Any]:
    """`tokens` as an array [N]. Raises DataError E9004 where they are no integers."""
    given = np.asarray(tokens).reshape(-1)
    if given.size and given.dtype.kind not in "iu":
        raise DataError("E9004", f"tokens are {given.dtype}; they must be integers below 2^64")
    return given


def char_vocab(text: str) -> list[str]:
    """The distinct characters of `text`, sorted by code point.

    >>> char_vocab("hello")
    ['e', 'h', 'l', 'o']
    """
    return sorted(set(text))


def encode(text: str, vocab: Sequence[str]) -> NDArray[np.unsignedinteger]:
    """The tokens of `text`, [len(text)] of the narrowest unsigned dtype. Raises DataError E9004.

    Only vocabularies of single characters can be encoded with.
    """
    longer = next((token for token in vocab if not isinstance(token, str) or len(token) != 1), None)
    if longer is not None:
        raise DataError("E9004", f"the vocabulary holds {longer!r}; only single characters can be encoded with")
    if len(set(vocab)) != len(vocab):
        raise DataError("E9004", "the vocabulary holds a character twice; each needs one number")
    places = {token: place for place, token in enumerate(vocab)}
    try:
        return np.array([places[character] for character in text], _narrowest(len(vocab)))
    except KeyError as error:
        character = error.args[0]
        raise DataError(
            "E9004", f"character {character!r} at position {text.index(character)} is not in the vocabulary"
        ) from None


def decode_text(tokens: Sequence[int] | NDArray[np.integer], vocab: Sequence[str]) -> str:
    """The text of a token stream: the inverse of `encode`. Raises DataError E9004."""
    numbers = _integers(tokens).tolist()
    for place, number in enumerate(numbers):
        if not 0 <= number < len(vocab):
            raise DataError("E9004", f"token {number} at position {place} is not below the vocabulary's {len(vocab)}")
    return "".join(vocab[number] for number in numbers)


def lm_windows(
    tokens: Sequence[int] | NDArray[np.integer], seq: int, stride: int, vocab: int | Sequence[str]
) -> list[tuple[NDArray[np.unsignedinteger], NDArray[np.unsignedinteger]]]:
    """Windows of `seq` tokens, each with the same window one token on, of type (idx[V][seq], idx[V][seq]).

    seq, stride: at least 1; vocab: the vocabulary or its size V, which every token lies below. Raises DataError E9004.
    """
    seq, stride = checked_int("seq", seq, 1, 2**63), checked_int("stride", stride, 1, 2**63)
    size = checked_int("vocab", len(vocab) if isinstance(vocab, Sequence) else vocab, 0, 2**64 - 1)
    given = _integers(tokens)
    if given.size and not 0 <= int(given.min()) <= int(given.max()) < size:
        raise DataError("E9004", f"tokens lie in [{given.min()}, {given.max()}]; the vocabulary has {size}")
    narrow = given.astype(_narrowest(size))
    starts = range(0, len(narrow) - seq, stride)
    return [(narrow[start : start + seq], narrow[start + 1 : start + 1 + seq]) for start in starts]
