"""The `.psk.d` container: a sequence of samples of one Presk type, and tools for texts as samples.

`parse_type` reads the text of a type into a `Layout`; `Reader` and `Writer` turn files into samples and back;
`Pipeline` says which samples stand in which batch; `char_vocab`, `encode`, `decode_text` and `lm_windows` make samples
of texts. What is wrong with a file, a type or a value is a `DataError` with one of the codes E9001 to E9005 (R92 to R96
of the specification); a wrong argument is an ArgumentError.
"""

from loader_service.data.pskd.dataset import LmWindows, PskdDataset
from loader_service.data.pskd.header import MAGIC, VERSION, VERSION_ENCODED, Header
from loader_service.data.pskd.layout import Enc, Layout, Leaf, Record, Tuple, idx_width
from loader_service.data.pskd.pipeline import Pipeline, shuffle_indices
from loader_service.data.pskd.reader import Reader, info
from loader_service.data.pskd.stream import PipelineSampler, parse_pipeline, pipeline_stream
from loader_service.data.pskd.text import char_vocab, decode_text, encode, lm_windows
from loader_service.data.pskd.types import parse_type
from loader_service.data.pskd.writer import Writer, write, write_encoded
from loader_service.errors import DataError

__all__ = [
    "MAGIC",
    "VERSION",
    "VERSION_ENCODED",
    "DataError",
    "Enc",
    "Header",
    "Layout",
    "Leaf",
    "LmWindows",
    "Pipeline",
    "PipelineSampler",
    "PskdDataset",
    "Reader",
    "Record",
    "Tuple",
    "Writer",
    "char_vocab",
    "decode_text",
    "encode",
    "idx_width",
    "info",
    "lm_windows",
    "parse_pipeline",
    "parse_type",
    "pipeline_stream",
    "shuffle_indices",
    "write",
    "write_encoded",
]
