"""What a live engine holds is what was planned: the K/V of every group and every other line, before and under load."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from gemwright import LLM, SamplingParams
from gemwright.config import EngineConfig
from gemwright.engine import start
from gemwright.engine.measured import EngineMeasurement
from gemwright.loading.checkpoint import Checkpoint
from gemwright.memory.dtypes import DTYPE_BYTES
from gemwright.memory.engine_plan import EnginePlan
from gemwright.memory.footprint import plan_footprint
from gemwright.planner import plan
from gemwright.testing import TINY_CONFIGS
from tests.end_to_end.command_line import CommandLine
from tests.end_to_end.conftest import TinyFolder, TinyLLM

ANSWER = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
"""Four tokens, whatever they are."""


def prompts(count: int, length: int) -> list[list[int]]:
    """Return prompts without a common beginning."""
    return [[2, *(3 + (7 * place + 31 * index) % 400 for place in range(length - 1))] for index in range(count)]


def cache_lines(found: EngineMeasurement) -> list[tuple[int, int]]:
    """Return planned and allocated bytes of each group."""
    return [(line.planned_bytes, line.measured_bytes) for line in found.lines if line.name.startswith("K/V")]


def measured_at_each_step(llm: LLM, asked: Sequence[list[int]]) -> list[EngineMeasurement]:
    """Answer all prompts at once and return what was measured before, after every step, and at the end."""
    found = [llm.measure()]
    requests = [request for ids in asked for request in llm.add(ids, ANSWER)]
    while any(not request.is_done for request in requests):
        llm.core.step()
        found.append(llm.measure())
    for request in requests:
        assert request.error is None
        llm.core.forget(request)
    return [*found, llm.measure()]


@pytest.mark.parametrize("name", TINY_CONFIGS)
@pytest.mark.parametrize(("context", "users"), [(24, 1), (64, 5), (160, 3)])
def test_every_line_is_allocated_as_planned_before_during_and_after_load(
    name: str, context: int, users: int, tiny_llm: TinyLLM
) -> None:
    llm = tiny_llm(name, max_model_len=context, max_num_seqs=users, max_num_batched_tokens=48)
    at_each = measured_at_each_step(llm, prompts(users + 1, context - 4))
    groups = llm.engine.layout.groups
    for found in at_each:
        assert [line.measured_bytes for line in found.lines] == [line.planned_bytes for line in found.lines]
        assert cache_lines(found) == [(group.total_bytes, group.total_bytes) for group in groups]
        assert all(line.touched_bytes <= line.measured_bytes for line in found.lines)
    touched = [found.touched_bytes for found in at_each]
    assert touched == sorted(touched)
    assert touched[0] < touched[-1]


@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_a_group_takes_its_layers_blocks_heads_and_widths(name: str, tiny_llm: TinyLLM) -> None:
    """The bytes of each group, from the model's layers and the cache's own tensors."""
    llm = tiny_llm(name, max_model_len=80, max_num_seqs=2)
    cache, layers = llm.engine.runner.decoder.cache, llm.spec.layers
    for group, measured in zip(llm.engine.layout.groups, llm.engine.runner.ops.cache_bytes(cache), strict=True):
        first = layers[group.layers[0]]
        tensors = 2 if group.stores_keys else 1
        slots = group.num_blocks * group.block_size
        values = tensors * len(group.layers) * slots * first.num_kv_heads * first.head_dim
        assert measured == values * DTYPE_BYTES[llm.engine.dtype]
        assert all(layers[index].owns_kv for index in group.layers)
    owners = sorted(index for group in llm.engine.layout.groups for index in group.layers)
    assert owners == [index for index, layer in enumerate(layers) if layer.owns_kv]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("options", [{"block_size": 8}, {"kv_layout": "both"}, {"kv_cache_memory_bytes": 1 << 20}])
def test_other_settings_are_allocated_as_planned_too(
    dtype: str, options: dict[str, object], tiny_llm: TinyLLM, tiny_folder: TinyFolder
) -> None:
    llm = tiny_llm("gemma4-k-equals-v", dtype=dtype, max_model_len=96, max_num_seqs=3, **options)
    (*_, found) = measured_at_each_step(llm, prompts(3, 60))
    assert [line.measured_bytes for line in found.lines] == [line.planned_bytes for line in found.lines]
    planned = plan(str(tiny_folder("gemma4-k-equals-v")), dtype=dtype, max_model_len=96, max_num_seqs=3, **options)
    sizes = {line.name: line.size_bytes for line in planned.lines}
    assert [sizes[line.name] for line in found.lines] == [line.measured_bytes for line in found.lines]


def test_the_allocator_takes_its_sizes_from_the_plan_that_is_summed(
    tiny_llm: TinyLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that is handed the plan of other settings allocates that plan: it has no sizes of its own."""
    asked = EngineConfig(threads=1, max_model_len=64, max_num_seqs=2)
    other = EngineConfig(threads=1, max_model_len=144, max_num_seqs=5, block_size=32, max_num_batched_tokens=72)
    made: list[EnginePlan] = []
    make = start.plan_engine

    def plan_other(checkpoint: Checkpoint, config: EngineConfig) -> EnginePlan:
        assert config == asked
        made.append(make(checkpoint, other))
        return made[-1]

    monkeypatch.setattr(start, "plan_engine", plan_other)
    llm = tiny_llm("gemma3", max_model_len=64, max_num_seqs=2)
    (planned,) = made
    engine = llm.engine
    assert engine.plan is planned
    assert engine.runner.layout is planned.layout is llm.core.blocks.layout
    assert engine.lines == plan_footprint(
        llm.spec, planned.layout, planned.workspace, planned.dtype, planned.holding, planned.encodings
    )
    assert engine.measured == tuple(line.planned_bytes for line in planned.lines)
    assert engine.measured[-1] == sum(buffer.total_bytes for buffer in planned.workspace.buffers)
    monkeypatch.undo()
    assert engine.measured_bytes > tiny_llm("gemma3", max_model_len=64, max_num_seqs=2).engine.measured_bytes


def test_blocks_and_rows_count_as_touched_once_something_was_written(tiny_llm: TinyLLM) -> None:
    llm = tiny_llm("gemma3", max_model_len=128, max_num_seqs=4)
    weights = sum(line.planned_bytes for line in llm.engine.lines if line.key[0] == "weights")
    assert llm.measure().touched_bytes == weights
    llm.generate([prompts(1, 20)[0]], ANSWER)
    found = llm.measure()
    # 23 tokens with K/V (the last answer's token has none): two blocks of 16 in every group.
    for group in llm.engine.layout.groups:
        line = next(line for line in found.lines if line.name == cache_name(llm, group.index))
        assert line.touched_bytes == 2 * group.block_bytes
    workspace = found.lines[-1]
    rows = {"selected": 1, "logits": 1, "wanted": 1}
    assert workspace.touched_bytes == sum(
        buffer.total_bytes // buffer.rows * rows.get(buffer.name, 20) for buffer in llm.engine.plan.workspace.buffers
    )


def cache_name(llm: LLM, index: int) -> str:
    return next(line.name for line in llm.engine.lines if line.key == ("cache", str(index)))


def test_what_a_process_takes_beside_the_lines_is_told(tiny_llm: TinyLLM) -> None:
    llm = tiny_llm("gemma2")
    found = llm.measure()
    beside = found.process_bytes - found.touched_bytes - found.beside_bytes
    assert found.measured_runtime_bytes == beside
    assert (
        found.planned_process_bytes == found.touched_bytes + found.beside_bytes + llm.engine.plan.holding.runtime_bytes
    )
    assert found.peak_process_bytes >= found.process_bytes > 0


@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_run_prints_planned_and_measured_bytes_that_are_equal(
    name: str, gemwright: CommandLine, tiny_folder: TinyFolder
) -> None:
    words = ("--token-ids", "2,5,9", "--max-tokens", "3", "--max-model-len", "64", "--json")
    found = gemwright("run", tiny_folder(name), *words)
    assert found.code == 0, found.stderr
    memory = json.loads(found.stdout)["memory"]
    assert memory["planned_bytes"] == memory["measured_bytes"] > 0
    assert memory["planned_bytes"] == sum(line["planned_bytes"] for line in memory["lines"])
    for line in memory["lines"]:
        assert line["planned_bytes"] == line["measured_bytes"]
    assert memory["process_bytes"] > 0
