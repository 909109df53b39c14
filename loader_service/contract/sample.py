"""What a dataset holds: the Protocol that every dataset meets, and the sample of line images.

Invariant (R10): `dataset[i]` gives the same sample for the same i, in every process and thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Dataset", "ImageSample"]

Sample_co = TypeVar("Sample_co", covariant=True)


class Dataset(Protocol[Sample_co]):
    """A sized, indexable collection of samples, read by several workers at once.

    A `fingerprint` attribute (text), where there is one, stands for the dataset's content in the stream's
    fingerprint; otherwise its class, its attributes and its length do.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Sample_co: ...


@dataclass(frozen=True, slots=True)
class ImageSample:
    """One line image with its targets.

    image: float32 [C, H, W], planar; target: int32 [L], the CTC targets (L may be 0); label: an int32.
    """

    image: NDArray[np.float32]
    target: NDArray[np.int32]
    label: int = 0

    def __iter__(self) -> Any:
        """Unpacks as (image, target, label)."""
        return iter((self.image, self.target, self.label))
