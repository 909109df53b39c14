"""Datasets, and for each a factory that makes a ready stream of it, for a configuration to name.

Importing this package needs numpy only; Pillow is imported when a dataset that draws text is made.
"""

from __future__ import annotations

from loader_service.contract.sample import Dataset
from loader_service.data.concat import ConcatDataset
from loader_service.data.synthetic import SyntheticLines, synthetic_lines
from loader_service.data.text_images import TextLineImages, text_line_images

__all__ = ["ConcatDataset", "Dataset", "SyntheticLines", "TextLineImages", "synthetic_lines", "text_line_images"]
