"""Texts as tokens, one token for each character, and windows of them for language models.

Owns `char_vocab`, `encode`, `decode_text` and `lm_windows`. Invariant: a vocabulary is the sorted distinct code points,
so index i means vocab[i] on every machine (R97). Values that are wrong are DataError E9004 with their place; arguments
of the wrong kind are ArgumentErrors.

    window k is (tokens[k·stride .. +seq], tokens[k·stride + 1 .. +seq]), while k·stride + seq + 1 <= len(tokens)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.checks import checked_int, checked_integers, checked_sequence, checked_text
from loader_service.data.pskd.layout import idx_width
from loader_service.errors import ArgumentError, DataError

__all__ = ["char_vocab", "decode_text", "encode", "lm_windows"]


def _narrowest(vocabulary: int) -> np.dtype[np.unsignedinteger]:
    return np.dtype(f"<u{idx_width(max(vocabulary, 1))}")


def _checked_tokens(tokens: Sequence[int] | NDArray[np.integer]) -> NDArray[np.integer]:
    """`tokens` as an array of integers [N]. Raises DataError E9004."""
    try:
        return checked_integers("tokens", tokens)
    except ArgumentError as error:
        raise DataError("E9004", error.message) from None


def _checked_vocab(vocab: Sequence[str]) -> tuple[str, ...]:
    """A vocabulary as a tuple of texts; a text is one of its characters. Raises ArgumentError."""
    return tuple(vocab) if isinstance(vocab, str) else checked_sequence("vocab", vocab, checked_text)


def char_vocab(text: str) -> list[str]:
    """List the distinct characters of a text, sorted by code point.

    Raises:
        ArgumentError: If `text` is no str.

    >>> char_vocab("hello")
    ['e', 'h', 'l', 'o']
    """
    return sorted(set(checked_text("text", text)))


def encode(text: str, vocab: Sequence[str]) -> NDArray[np.unsignedinteger]:
    """Turn a text into tokens (R98).

    Args:
        text: Any text of the vocabulary's characters.
        vocab: Distinct single characters.

    Returns:
        The place of each character in the vocabulary, [len(text)] of the narrowest unsigned dtype that holds all
        places.

    Raises:
        DataError: E9004 for a character that is not in the vocabulary, and for a vocabulary of other than distinct
            single characters.
        ArgumentError: If `text` is no str, or `vocab` no sequence of str.
    """
    text, known = checked_text("text", text), _checked_vocab(vocab)
    longer = next((token for token in known if len(token) != 1), None)
    if longer is not None:
        raise DataError("E9004", f"the vocabulary holds {longer!r}; only single characters can be encoded with")
    places = {token: place for place, token in enumerate(known)}
    if len(places) != len(known):
        raise DataError("E9004", "the vocabulary holds a character twice; each needs one number")
    try:
        return np.array([places[character] for character in text], _narrowest(len(known)))
    except KeyError as error:
        character = error.args[0]
        raise DataError(
            "E9004", f"character {character!r} at position {text.index(character)} is not in the vocabulary"
        ) from None


def decode_text(tokens: Sequence[int] | NDArray[np.integer], vocab: Sequence[str]) -> str:
    """Turn tokens back into their text: the inverse of `encode`.

    Args:
        tokens: Integers [N], each below len(vocab).
        vocab: The text of each token.

    Raises:
        DataError: E9004 for a token outside the vocabulary, and for tokens that are no integers.
        ArgumentError: If `vocab` is no sequence of str.
    """
    numbers, known = _checked_tokens(tokens).tolist(), _checked_vocab(vocab)
    for place, number in enumerate(numbers):
        if not 0 <= number < len(known):
            raise DataError("E9004", f"token {number} at position {place} is not below the vocabulary's {len(known)}")
    return "".join(known[number] for number in numbers)


def lm_windows(
    tokens: Sequence[int] | NDArray[np.integer], seq: int, stride: int, vocab: int | Sequence[str]
) -> list[tuple[NDArray[np.unsignedinteger], NDArray[np.unsignedinteger]]]:
    """Cut tokens into windows, each with the same window one token later (R99).

    Args:
        tokens: Integers [N], each below the size of the vocabulary.
        seq: Tokens in a window, at least 1.
        stride: Tokens between the starts of two windows, at least 1.
        vocab: The vocabulary, or its size V.

    Returns:
        Pairs (window, targets), each [seq] of the narrowest unsigned dtype: samples of (idx[V][seq], idx[V][seq]).

    Raises:
        DataError: E9004 for a token outside the vocabulary, and for tokens that are no integers.
        ArgumentError: If seq, stride or vocab is out of its range.
    """
    seq, stride = checked_int("seq", seq, 1, 2**63), checked_int("stride", stride, 1, 2**63)
    size = _vocab_size(vocab)
    given = _checked_tokens(tokens)
    if given.size and not 0 <= int(given.min()) <= int(given.max()) < size:
        raise DataError("E9004", f"tokens lie in [{given.min()}, {given.max()}]; the vocabulary has {size}")
    narrow = given.astype(_narrowest(size))
    starts = range(0, len(narrow) - seq, stride)
    return [(narrow[start : start + seq], narrow[start + 1 : start + 1 + seq]) for start in starts]


def _vocab_size(vocab: Any) -> int:
    is_sequence = isinstance(vocab, Sequence) or (isinstance(vocab, np.ndarray) and vocab.ndim > 0)
    return len(_checked_vocab(vocab)) if is_sequence else checked_int("vocab", vocab, 0, 2**64 - 1)
