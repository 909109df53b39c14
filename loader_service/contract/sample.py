"""The protocol of datasets, and the sample of line images.

Owns `Dataset` and `ImageSample`. Invariant (R10): `dataset[i]` gives the same sample for the same i, in every process
and thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Dataset", "ImageSample"]

Sample_co = TypeVar("Sample_co", covariant=True)


class Dataset(Protocol[Sample_co]):
    """A sized, indexable collection of samples, read by several workers and threads at once.

    A `fingerprint` attribute (text), where there is one, stands for the dataset in the stream's fingerprint; otherwise
    what `contract.fingerprint.describe` finds does: its class, code, arguments and length. A method
    `widths(indices) -> int64 [N]`, where there is one, tells the widths of images without reading them.
    """

    def __len__(self) -> int:
        """Count the samples."""
        ...

    def __getitem__(self, index: int, /) -> Sample_co:
        """Read the sample at `index`, an int in [0, len(self)); the same index gives the same sample (R10)."""
        ...


@dataclass(frozen=True, slots=True)
class ImageSample:
    """One line image with its targets (R40).

    Attributes:
        image: float32 [C, H, W], planar.
        target: int32 [L], the CTC targets; L may be 0.
        label: an integer that fits int32.
    """

    image: NDArray[np.float32]
    target: NDArray[np.int32]
    label: int = 0

    def __iter__(self) -> Any:
        """Unpack as (image, target, label)."""
        return iter((self.image, self.target, self.label))
