"""Collators: samples -> layout -> bytes in given memory (R40 to R50).

Invariant of all: `plan` reads no random number and writes nothing; `write` fills every byte of every tensor, so nothing
of an earlier batch in the same memory shows through.
"""

from loader_service.contract.collate.collator import BatchContext, Collator, Padding, SlotError
from loader_service.contract.collate.line_images import ImageBatchCollator
from loader_service.contract.collate.pad import PadCollator
from loader_service.contract.collate.stack import StackCollator

__all__ = ["BatchContext", "Collator", "ImageBatchCollator", "PadCollator", "Padding", "SlotError", "StackCollator"]
