"""Mutated weight files: every one opens or is refused with an error of ours, in bounded time and memory.

The seed of a run is printed; GEMWRIGHT_FUZZ_SEED replays it.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
import resource
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemwright.errors import GemwrightError
from gemwright.loading.gguf import GgufCheckpoint, open_gguf
from gemwright.loading.safetensors import SafetensorsCheckpoint, open_safetensors

NUM_MUTANTS = 10_000
MEMORY_LIMIT_BYTES = 64 << 20
SECONDS_LIMIT = 10.0

Mutate = Callable[[random.Random], bytes]


def numbers(rng: random.Random, old: int, size: int) -> int:
    """Return a number that a parser may stumble over."""
    near = (0, 1, 2, 3, 31, 32, 33, 255, size, 2**31, 2**32, 2**53, 2**63, 2**64)
    return rng.choice([rng.choice(near) + rng.choice((-1, 0, 1)), old + rng.choice((-32, -1, 1, 32)), old * 2])


def scramble(rng: random.Random, content: bytes) -> bytes:
    """Return `content` with bytes flipped, cut, inserted, repeated or removed."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(changed) + 1)
        span = rng.choice((1, 1, 4, 8, 40))
        match rng.randrange(6):
            case 0:
                changed[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del changed[at:]
            case 2:
                changed[at:at] = rng.randbytes(span)
            case 3:
                changed[at:at] = changed[at : at + span]
            case 4:
                del changed[at : at + span]
            case 5:
                changed[at : at + span] = rng.choice((b"\0", b"\xff")) * span
    return bytes(changed)


@contextlib.contextmanager
def limited_memory() -> Iterator[None]:
    """Make an allocation that takes this process past MEMORY_LIMIT_BYTES more than it has raise MemoryError."""
    own_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (own_bytes + MEMORY_LIMIT_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def survive(
    path: Path, mutate: Mutate, look: Callable[[], None], capsys: pytest.CaptureFixture[str], min_refused: int
) -> None:
    """Write NUM_MUTANTS mutants to `path` and look at each; only GemwrightError may come of it, and not from all."""
    seed = int(os.environ.get("GEMWRIGHT_FUZZ_SEED", random.SystemRandom().randrange(2**32)))
    with capsys.disabled():
        print(f"\n{path.name}: {NUM_MUTANTS} mutants, GEMWRIGHT_FUZZ_SEED={seed}")
    num_refused = 0
    slowest_seconds = 0.0
    with limited_memory():
        for case in range(NUM_MUTANTS):
            content = mutate(random.Random(f"{seed}/{case}"))
            # A new file, not the old one cut and written over, which some file systems bring to the disk at once.
            path.unlink()
            path.write_bytes(content)
            begun = time.process_time()
            try:
                look()
            except GemwrightError as error:
                num_refused += 1
                if not str(error).replace("\n", "").isprintable() or len(str(error)) > 3000:
                    pytest.fail(f"seed {seed}, case {case}: a message no terminal should see: {error!r}")
            except BaseException as error:
                pytest.fail(f"seed {seed}, case {case}: {error!r} from {content!r}")
            slowest_seconds = max(slowest_seconds, time.process_time() - begun)
    assert slowest_seconds < SECONDS_LIMIT, f"seed {seed}"
    assert min_refused <= num_refused < NUM_MUTANTS, f"seed {seed}: the mutants test nothing"


def read_all(checkpoint: SafetensorsCheckpoint | GgufCheckpoint) -> None:
    """Read every tensor, and check that what was opened lies inside its file."""
    for name, tensor in checkpoint.tensors.items():
        assert name == tensor.name
        assert tensor.begin + tensor.num_bytes <= tensor.file.size_bytes
        try:
            values = tensor.read_rows(0, tensor.num_rows)
        except GemwrightError:
            continue
        assert np.isfinite(values).all()
        assert values.shape == (tensor.num_rows, *tensor.shape[1:])


class GgufBuilder:
    """Writes a GGUF file and remembers where its numbers stand."""

    def __init__(self) -> None:
        self.content = bytearray(b"GGUF")
        self.fields: list[tuple[int, str]] = []

    def number(self, code: str, value: int) -> None:
        self.fields.append((len(self.content), code))
        self.content += struct.pack("<" + code, value)

    def text(self, value: str) -> None:
        self.number("Q", len(value.encode()))
        self.content += value.encode()

    def pair(self, key: str, type_number: int, code: str, value: Any) -> None:
        self.text(key)
        self.number("I", type_number)
        self.content += struct.pack("<" + code, value)

    def array(self, key: str, type_number: int, code: str, values: list[Any]) -> None:
        self.text(key)
        self.number("I", 9)
        self.number("I", type_number)
        self.number("Q", len(values))
        for value in values:
            if type_number == 8:
                self.text(value)
            else:
                self.content += struct.pack("<" + code, value)


def small_gguf() -> GgufBuilder:
    """Return a file with every kind of metadata and five tensors."""
    built = GgufBuilder()
    tensors = [("token_embd.weight", (32, 4), 2, 72), ("a", (4, 3), 0, 48), ("b", (256,), 30, 512)]
    tensors += [("c", (256, 2, 2), 14, 840), ("d", (5,), 1, 10)]
    built.number("I", 3)
    built.number("Q", len(tensors))
    built.number("Q", 10)
    built.pair("general.alignment", 4, "I", 32)
    built.pair("u8", 0, "B", 7)
    built.pair("f32", 6, "f", 0.5)
    built.pair("flag", 7, "B", 1)
    built.pair("u64", 10, "Q", 2**40)
    built.text("general.architecture")
    built.number("I", 8)
    built.text("gemma3")
    built.array("tokens", 8, "", ["<pad>", "", "▁a", "語"])
    built.array("scores", 6, "f", [0.0, -1.0, -2.0])
    built.array("types", 5, "i", [1, 2, 3])
    built.array("bools", 7, "B", [1, 0])
    offset = 0
    for name, shape, type_number, num_bytes in tensors:
        built.text(name)
        built.number("I", len(shape))
        for size in shape:
            built.number("Q", size)
        built.number("I", type_number)
        built.number("Q", offset)
        offset += -(-num_bytes // 32) * 32
    built.content += bytes(-len(built.content) % 32)
    # Small finite numbers in every encoding.
    built.content += bytes([1, 2]) * (offset // 2)
    return built


def test_mutated_gguf_files_open_or_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mutant.gguf"
    built = small_gguf()
    path.write_bytes(built.content)
    intact = open_gguf(path)
    assert all(tensor.read_rows(0, tensor.num_rows).size for tensor in intact.tensors.values())

    def mutate(rng: random.Random) -> bytes:
        if rng.random() < 0.5:
            return scramble(rng, bytes(built.content))
        changed = bytearray(built.content)
        for _ in range(rng.choice((1, 1, 2))):
            at, code = rng.choice(built.fields)
            (old,) = struct.unpack_from("<" + code, changed, at)
            new = numbers(rng, old, len(changed)) % 2 ** (8 * struct.calcsize(code))
            struct.pack_into("<" + code, changed, at, new)
        return bytes(changed)

    def look() -> None:
        checkpoint = open_gguf(path)
        for key in checkpoint.metadata:
            checkpoint.metadata.get(key)
        read_all(checkpoint)

    survive(path, mutate, look, capsys, min_refused=NUM_MUTANTS // 4)


def small_safetensors() -> tuple[dict[str, Any], bytes]:
    """Return header and data of a file with five tensors."""
    tensors = [("a.weight", "F32", [3, 4], 48), ("b", "BF16", [8], 16), ("c", "F16", [2, 2, 2], 16)]
    tensors += [("d", "I64", [2], 16), ("e", "F32", [], 4)]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, dtype, shape, num_bytes in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, begin + num_bytes]}
        begin += num_bytes
    return header, bytes([1, 2]) * (begin // 2)


def pack(header: bytes, data: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", (len(header) if length is None else length) % 2**64) + header + data


ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    1.0,
    1e300,
    "",
    "F32",
    "F8_E4M3",
    "F4",
    [],
    {},
    [[1]],
    [1] * 40,
    "\ud800",
)


def change_json(rng: random.Random, value: Any, size: int) -> None:
    """Change one place somewhere inside `value`, which is an object or an array."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    if not keys:
        return
    key = rng.choice(keys)
    inner = value[key]
    if isinstance(inner, (dict, list)) and inner and rng.random() < 0.8:
        change_json(rng, inner, size)
    elif isinstance(value, dict) and rng.random() < 0.2:
        value[rng.choice((key + "x", "__metadata__", "../x", "dtype"))] = value.pop(key)
    elif rng.random() < 0.1:
        del value[key]
    elif type(inner) is int and rng.random() < 0.7:
        value[key] = numbers(rng, inner, size)
    else:
        value[key] = copy.deepcopy(rng.choice(ODD_VALUES))


def change_text(rng: random.Random, text: bytes) -> bytes:
    """Return JSON text with a piece repeated, nested or replaced by something a lenient parser would take."""
    at = rng.randrange(len(text))
    piece = rng.choice((b"NaN", b"1e999", b"9" * 5000, b"[" * 3000, b'{"a":' * 3000, b"\xff", b"//", b" ", b'"a":1,'))
    return text[:at] + piece + text[at + rng.choice((0, 1)) :]


def test_mutated_safetensors_files_open_or_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mutant.safetensors"
    header, data = small_safetensors()
    text = json.dumps(header).encode()
    path.write_bytes(pack(text, data))
    assert open_safetensors(path).tensors["a.weight"].read_rows(0, 3).shape == (3, 4)

    def mutate(rng: random.Random) -> bytes:
        choice = rng.random()
        if choice < 0.3:
            return scramble(rng, pack(text, data))
        if choice < 0.4:
            return pack(text, data, numbers(rng, len(text), len(text) + len(data)))
        if choice < 0.5:
            return pack(scramble(rng, text), data)
        if choice < 0.6:
            return pack(change_text(rng, text), data)
        changed = json.loads(text)
        for _ in range(rng.choice((1, 1, 2))):
            change_json(rng, changed, len(data))
        return pack(json.dumps(changed).encode(), scramble(rng, data) if rng.random() < 0.2 else data)

    survive(path, mutate, lambda: read_all(open_safetensors(path)), capsys, min_refused=NUM_MUTANTS // 4)


def test_mutated_indexes_open_or_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = tmp_path / "model.safetensors.index.json"
    (tmp_path / "secret.safetensors").write_bytes(b"not to be read from here")
    folder = tmp_path / "model"
    folder.mkdir()
    weight_map = {}
    for number in (1, 2):
        shard = f"model-{number:05d}-of-00002.safetensors"
        header = {f"w{number}.{part}": {"dtype": "F32", "shape": [1], "data_offsets": [4 * part, 4 * part + 4]}
                  for part in range(3)}  # fmt: skip
        (folder / shard).write_bytes(pack(json.dumps(header).encode(), bytes(12)))
        weight_map |= dict.fromkeys(header, shard)
    text = json.dumps({"metadata": {"total_size": 24}, "weight_map": weight_map}).encode()
    index = folder / "model.safetensors.index.json"
    index.write_bytes(text)
    assert open_safetensors(folder).tensors.keys() == weight_map.keys()
    shards = [*set(weight_map.values()), "../secret.safetensors", "secret.safetensors", ".", "..", "pytorch_model.bin"]
    shards += ["x" * 300 + ".safetensors", "\0.safetensors", "\x1b[2J.safetensors"]

    def mutate(rng: random.Random) -> bytes:
        choice = rng.random()
        if choice < 0.4:
            return scramble(rng, text)
        if choice < 0.5:
            return change_text(rng, text)
        changed = json.loads(text)
        if choice < 0.8:
            changed["weight_map"][rng.choice(list(weight_map))] = rng.choice(shards)
        else:
            change_json(rng, changed, len(text))
        return json.dumps(changed).encode()

    def look() -> None:
        opened = open_safetensors(folder)
        assert all(path.parent == folder and path.name in weight_map.values() for path in opened.paths)
        read_all(opened)

    survive(index, mutate, look, capsys, min_refused=NUM_MUTANTS // 4)
