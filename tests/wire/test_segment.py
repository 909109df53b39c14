"""Segments: written by one side, read-only for the other, and nobody's to delete but the daemon's."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy as np
import pytest

from loader_service.errors import IntegrityError, SharedMemoryError
from loader_service.wire.segment import HEADER_BYTES, Segment, ready_header

SIZES = [HEADER_BYTES, HEADER_BYTES + 1, 4095, 4096, 4097, 2**20 - 1, 2**20, 2**20 + 1]
Create = Callable[[int], str]
UID = os.geteuid()


@pytest.fixture
def create() -> Iterator[Create]:
    """Makes segments as the daemon does: with `SharedMemory`, whose resource tracker knows them."""
    made: list[SharedMemory] = []

    def segment(nbytes: int) -> str:
        made.append(SharedMemory(create=True, size=nbytes))
        made[-1].close()
        return made[-1].name

    yield segment
    for memory in made:
        memory.unlink()


def written(name: str, content: bytes, step: int = 7, generation: int = 3) -> None:
    """Write as a worker does: begin, write, commit."""
    segment = Segment.open(name, UID, writeable=True)
    segment.begin(step, generation)
    segment.payload[: len(content)] = np.frombuffer(content, np.uint8)
    segment.commit(step, generation, len(content))


def attached(code: str, name: str) -> subprocess.Popen[str]:
    """Another process that maps segment `name` as `segment` and runs `code`."""
    opened = f"segment = Segment.open({name!r}, {UID})"
    lines = f"import sys\nfrom loader_service.wire.segment import Segment\n{opened}\n{code}"
    command = [sys.executable, "-c", lines]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.parametrize("nbytes", SIZES)
def test_what_was_committed_is_read_as_it_was_written(create: Create, nbytes: int) -> None:
    name = create(nbytes)
    content = np.random.default_rng(nbytes).bytes(nbytes - HEADER_BYTES)
    written(name, content)
    reader = Segment.open(name, UID)
    reader.check(7, 3, len(content))
    assert reader.memory.size == nbytes
    assert reader.payload.tobytes() == content


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 4032])
def test_a_batch_may_take_any_part_of_the_payload(create: Create, nbytes: int) -> None:
    name = create(4096)
    written(name, b"x" * nbytes)
    Segment.open(name, UID).check(7, 3, nbytes)


@pytest.mark.parametrize(("step", "generation", "nbytes"), [(8, 3, 5), (7, 4, 5), (7, 2, 5), (7, 3, 4), (7, 3, 6)])
def test_another_use_than_the_message_named_is_an_error(
    create: Create, step: int, generation: int, nbytes: int
) -> None:
    name = create(4096)
    written(name, b"batch")
    with pytest.raises(
        IntegrityError, match=f"segment {name} holds .* 7, 3, 5.* says .* {step}, {generation}, {nbytes}"
    ):
        Segment.open(name, UID).check(step, generation, nbytes)


def test_a_segment_under_writing_is_not_ready(create: Create) -> None:
    name = create(4096)
    written(name, b"batch")
    writer, reader = Segment.open(name, UID, writeable=True), Segment.open(name, UID)
    writer.begin(7, 3)
    with pytest.raises(IntegrityError):
        reader.check(7, 3, 5)
    writer.commit(7, 3, 5)
    reader.check(7, 3, 5)


def test_more_bytes_than_the_segment_has_are_an_error(create: Create) -> None:
    name = create(4096)
    writer = Segment.open(name, UID, writeable=True)
    writer.commit(7, 3, 4096 - HEADER_BYTES + 1)
    with pytest.raises(IntegrityError):
        Segment.open(name, UID).check(7, 3, 4096 - HEADER_BYTES + 1)


@pytest.mark.parametrize("nbytes", [1, 39, 63, HEADER_BYTES, 4096])
def test_memory_that_no_worker_has_written_is_an_error(create: Create, nbytes: int) -> None:
    """Also where it is too small for a header."""
    with pytest.raises(IntegrityError):
        Segment.open(create(nbytes), UID).check(0, 0, 0)


def test_header_words_hold_the_largest_numbers(create: Create) -> None:
    segment = Segment.open(create(4096), UID, writeable=True)
    segment.commit(2**63 - 1, 2**64 - 1, 0)
    segment.check(2**63 - 1, 2**64 - 1, 0)


def test_a_reader_cannot_write_through_its_arrays(create: Create) -> None:
    name = create(4096)
    written(name, b"batch")
    reader = Segment.open(name, UID)
    for array in (reader.memory, reader.payload, reader.payload[1:3], reader.payload.view(np.int8)):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
    with pytest.raises(TypeError):
        reader.begin(8, 4)
    with pytest.raises(TypeError):
        reader.commit(8, 4, 5)
    reader.check(7, 3, 5)
    assert reader.payload[:5].tobytes() == b"batch"


def test_the_pages_of_a_reader_are_write_protected(create: Create) -> None:
    """One who goes around numpy meets the kernel, and other readers see nothing of it."""
    name = create(4096)
    written(name, b"batch")
    no_core = "import ctypes, resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
    process = attached(no_core + "ctypes.memset(segment.address, 0, 5)", name)
    process.communicate()
    assert process.returncode == -signal.SIGSEGV
    assert Segment.open(name, UID).payload[:5].tobytes() == b"batch"


def test_the_address_is_where_the_payload_begins(create: Create) -> None:
    segment = Segment.open(create(4096), UID)
    assert segment.address == segment.memory.ctypes.data + HEADER_BYTES
    assert segment.address % HEADER_BYTES == 0


@pytest.mark.parametrize("name", ["lsv-not-there", "", "/", "a/b", "../shm", ".", "nul\0", "x" * 300, "\udcff"])
@pytest.mark.parametrize("writeable", [False, True])
def test_a_segment_that_is_not_there_is_an_error_that_says_what_to_check(name: str, writeable: bool) -> None:
    with pytest.raises(SharedMemoryError, match=r"cannot be mapped .* same /dev/shm") as caught:
        Segment.open(name, UID, writeable=writeable)
    assert repr(name) in str(caught.value)
    assert isinstance(caught.value, OSError)


@pytest.mark.parametrize("writeable", [False, True])
def test_a_segment_of_another_user_is_refused(create: Create, monkeypatch: pytest.MonkeyPatch, writeable: bool) -> None:
    """Another user who takes a name that a clean-up has removed neither gets a batch written nor has one read."""
    name = create(4096)
    if UID == 0:
        os.chown(f"/dev/shm/{name}", 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(SharedMemoryError, match=r"it belongs to user \d+, and the daemon is user 12346"):
        Segment.open(name, 12346, writeable=writeable)
    Segment.open(name, os.stat(f"/dev/shm/{name}").st_uid)


def test_a_mapping_survives_the_unlinking() -> None:
    memory = SharedMemory(create=True, size=4096)
    memory.close()
    written(memory.name, b"batch")
    reader = Segment.open(memory.name, UID)
    memory.unlink()
    reader.check(7, 3, 5)
    assert reader.payload[:5].tobytes() == b"batch"
    with pytest.raises(SharedMemoryError, match=memory.name):
        Segment.open(memory.name, UID)


def test_a_mapping_ends_with_its_last_array(create: Create) -> None:
    name = create(4096)
    written(name, b"batch")
    segment = Segment.open(name, UID)
    last = segment.payload[:5]
    del segment
    assert name in Path("/proc/self/maps").read_text()
    assert last.tobytes() == b"batch"
    del last
    gc.collect()
    assert name not in Path("/proc/self/maps").read_text()


def test_a_reader_that_exits_leaves_the_segment(create: Create) -> None:
    """Python's resource tracker would delete it: the reader must not even load it."""
    name = create(4096)
    written(name, b"batch")
    process = attached("print(segment.payload[:5].tobytes(), 'multiprocessing.resource_tracker' in sys.modules)", name)
    out, err = process.communicate()
    assert (out, err, process.returncode) == ("b'batch' False\n", "", 0)
    assert Segment.open(name, UID).payload[:5].tobytes() == b"batch"


def test_a_reader_that_is_killed_leaves_the_segment(create: Create) -> None:
    name = create(4096)
    written(name, b"batch")
    process = attached("print('mapped', flush=True)\nsys.stdin.read()", name)
    assert process.stdout is not None
    assert process.stdout.readline() == "mapped\n"
    process.kill()
    process.communicate()  # until no process holds its standard error, as a tracker would
    assert process.returncode == -signal.SIGKILL
    reader = Segment.open(name, UID)
    reader.check(7, 3, 5)
    assert reader.payload[:5].tobytes() == b"batch"


@pytest.mark.parametrize("numbers", [(0, 0, 0), (12, 9, 128), (2**63 - 1, 2**63 - 1, 2**63 - 1)])
def test_the_header_is_that_of_a_batch_from_its_commit_to_the_next_begin(numbers: tuple[int, int, int]) -> None:
    segment = Segment("x", np.zeros(HEADER_BYTES + 128, np.uint8))
    step, generation, nbytes = numbers
    expected = ready_header(step, generation, nbytes)
    assert segment.header != expected
    segment.begin(step, generation)
    assert segment.header != expected
    segment.commit(step, generation, nbytes)
    assert segment.header == expected
    segment.begin(step, generation)
    assert segment.header != expected
