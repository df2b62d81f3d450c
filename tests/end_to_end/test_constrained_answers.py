"""Constrained answers of random models: always what the constraint admits, whatever runs beside them; each request's
constraint is its own, and so is its failure."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gemwright import LLM, AsyncEngine, SamplingParams
from gemwright.engine.request import FinishReason
from gemwright.engine.result import Choice
from gemwright.errors import RequestError
from gemwright.text.constraint import tool_constraint
from gemwright.text.parser import OutputParser, TokenReader
from tests.constrained import QUOTE
from tests.end_to_end.command_line import CommandLine
from tests.end_to_end.conftest import TinyFolder, TinyLLM
from tests.schemas import ANSWERS, PARAMETERS

# A byte is token 108 + byte. Closing brackets and quotes are made likely, so that random answers come to an end.
CLOSERS = {**{108 + byte: 6.0 for byte in b'}]"'}, 52: 6.0, 49: 6.0, 101: 6.0, 1: 4.0}
SAMPLED: dict[str, Any] = {
    **{"temperature": 1.0, "seed": 7, "max_tokens": 120},
    # A random model says one thing again and again, which no constraint forbids.
    **{"logit_bias": CLOSERS, "frequency_penalty": 2.0},
}
PROMPT = "Answer:"
TOOLS = [{"type": "function", "function": {"name": name, "parameters": found}} for name, found in PARAMETERS.items()]


def answers(llm: LLM, wanted: list[SamplingParams], prompts: list[list[int]] | None = None) -> list[Choice]:
    """Answer requests of different parameters together."""
    prompts = prompts or [llm.encode(f"{PROMPT} {number}") for number in range(len(wanted))]
    groups = [llm.core.add(ids, params, 7) for ids, params in zip(prompts, wanted, strict=True)]
    while llm.core.scheduler.has_work:
        llm.core.step()
    found = [choice for group in groups for choice in llm.completion(group, 0.0).choices]
    for request in (request for group in groups for request in group):
        assert request.error is None, request.error
        llm.core.forget(request)
    assert not llm.core._matchers
    return found


def validate(text: str | None, schema: Any) -> None:
    assert text is not None
    jsonschema.validate(json.loads(text), schema, cls=jsonschema.Draft202012Validator)


def test_a_random_model_answers_every_schema(tiny_llm: TinyLLM) -> None:
    finished = 0
    wanted = [SamplingParams(**SAMPLED, json_schema=schema) for schema in ANSWERS.values()]
    for choice, schema in zip(answers(tiny_llm("gemma3"), wanted), ANSWERS.values(), strict=True):
        if choice.finish_reason is FinishReason.STOP:
            finished += 1
            validate(choice.text, schema)
    assert finished >= 0.7 * len(ANSWERS)


def test_company_preemption_and_steps_change_no_constrained_answer(tiny_llm: TinyLLM) -> None:
    schemas = list(ANSWERS.values())[:12:2]
    wanted = [SamplingParams(**{**SAMPLED, "max_tokens": 30}, json_schema=schema) for schema in schemas]
    alone = tiny_llm("gemma4-e", max_num_seqs=1)
    expected = [choice.token_ids for choice in answers(alone, wanted)]
    assert len(set(expected)) == len(expected)
    for options in ({"max_num_batched_tokens": 7, "block_size": 8}, {"kv_cache_memory_bytes": 200_000}):
        llm = tiny_llm("gemma4-e", max_model_len=64, **options)
        assert [choice.token_ids for choice in answers(llm, wanted)] == expected
    assert [choice.token_ids for choice in answers(llm, wanted)] == expected  # prompts now come from the cache
    assert llm.core.counters.num_preemptions > 0


def test_neighbors_without_a_constraint_are_the_same_to_the_bit(tiny_llm: TinyLLM) -> None:
    plain = SamplingParams(temperature=1.0, seed=3, max_tokens=20, logprobs=4)
    strict = SamplingParams(**SAMPLED, json_schema=PARAMETERS["click"])
    prompts = [[2, 200 + number, 201, 202] for number in range(4)]
    alone = [answers(tiny_llm("gemma4-e"), [plain], [ids])[0] for ids in prompts]
    # Field case 119: plain and strict in turns, on one slot and on several.
    for num_seqs in (1, 4):
        llm = tiny_llm("gemma4-e", max_num_seqs=num_seqs)
        mixed = answers(llm, [plain, strict, plain, strict], prompts)
        assert mixed[0] == alone[0]
        assert mixed[2] == alone[2]
        for choice in (mixed[1], mixed[3]):
            validate(choice.text, PARAMETERS["click"])


def test_logprobs_are_those_of_the_raw_logits_and_a_cut_answer_says_length(tiny_llm: TinyLLM) -> None:
    llm = tiny_llm("gemma4-e")
    ids = llm.encode(PROMPT)
    (plain,) = answers(llm, [SamplingParams(temperature=0, max_tokens=1, logprobs=300)], [ids])
    (strict,) = answers(llm, [SamplingParams(temperature=0, max_tokens=2, logprobs=300, json_object=True)], [ids])
    assert plain.logprobs is not None
    assert strict.logprobs is not None
    assert strict.logprobs[0][:300] == plain.logprobs[0][:300]
    assert strict.text is not None
    assert strict.text[0] == "{"
    assert strict.finish_reason is FinishReason.LENGTH
    assert len(strict.token_ids) == 2


def test_answers_of_one_request_follow_their_constraint_each_for_itself(tiny_llm: TinyLLM) -> None:
    params = SamplingParams(temperature=3.0, seed=1, n=6, choice=("red", "green", "blue"))
    found = answers(tiny_llm("gemma3"), [params])
    assert {choice.text for choice in found} <= {"red", "green", "blue"}
    assert len({choice.text for choice in found}) > 1
    assert {choice.finish_reason for choice in found} == {FinishReason.STOP}


def test_stop_strings_stop_ids_and_min_tokens_hold_beside_a_constraint(tiny_llm: TinyLLM) -> None:
    llm = tiny_llm("gemma3")
    params = {"temperature": 0.0, "max_tokens": 50, "regex": "(ab){3,9}"}
    (whole,) = answers(llm, [SamplingParams(**params)])  # type: ignore[arg-type]
    assert whole.text in {"ab" * count for count in range(3, 10)}
    (stopped,) = answers(llm, [SamplingParams(**params, stop=("ba",))])  # type: ignore[arg-type]
    assert (stopped.text, stopped.finish_reason) == ("a", FinishReason.STOP)
    (at_id,) = answers(llm, [SamplingParams(**params, stop_token_ids=(108 + ord("b"),))])  # type: ignore[arg-type]
    assert at_id.token_ids == (108 + ord("a"), 108 + ord("b"))
    (longer,) = answers(llm, [SamplingParams(**params, min_tokens=18)])  # type: ignore[arg-type]
    assert longer.text == "ab" * 9


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"regex": "abc", "min_tokens": 5}, "min_tokens, regex"),
        ({"regex": "abc", "allowed_token_ids": (108 + ord("a"),)}, "allowed_token_ids, regex"),
        ({"grammar": 'start: ("q" | "w") endless\nendless: "a" endless'}, None),
    ],
)
def test_a_constraint_that_leads_nowhere_fails_its_own_request_and_no_other(
    settings: dict[str, Any], named: str | None, tiny_llm: TinyLLM
) -> None:
    llm = tiny_llm("gemma3")
    plain = SamplingParams(temperature=0, max_tokens=40)
    expected = llm.generate(PROMPT, plain)[0].token_ids
    groups = [
        llm.core.add(llm.encode(PROMPT), params, 1) for params in (plain, SamplingParams(**settings, max_tokens=40))
    ]
    while llm.core.scheduler.has_work:
        llm.core.step()
    ((good,), (bad,)) = groups
    assert tuple(good.token_ids) == expected
    assert isinstance(bad.error, RequestError)
    assert named is None or bad.error.value == named
    for request in (good, bad):
        llm.core.forget(request)
    assert llm.core.blocks.request_ids == ()


@pytest.mark.parametrize(("thinking", "opens_thought"), [(False, False), (True, False), (True, True)])
def test_a_required_call_is_a_call_to_whoever_reads_the_answer(
    thinking: bool, opens_thought: bool, tiny_llm: TinyLLM
) -> None:
    """Field cases 025, 031, 051: calls are filled, content is empty, and a thought stays a thought."""
    llm = tiny_llm("gemma3")
    required = tool_constraint(TOOLS, "required")
    assert required is not None
    assert llm.tokenizer is not None
    constraint = required.with_thinking(thinking, opens_thought)
    wanted = [SamplingParams(**{**SAMPLED, "seed": seed}, constraint=constraint) for seed in range(14)]
    num_whole, num_thoughts = 0, 0
    for choice in answers(llm, wanted):
        parser = OutputParser("gemma4", tools=TOOLS, opens_thought=opens_thought)
        reader = TokenReader(llm.tokenizer, parser)
        reader.push(choice.token_ids)
        reader.finish(choice.finish_reason.value)
        if choice.finish_reason is FinishReason.STOP:
            num_whole += 1
            num_thoughts += parser.output.reasoning_content is not None
            assert not parser.output.content
            assert parser.output.warnings == ()
            assert parser.output.tool_calls
            for call in parser.output.tool_calls:
                jsonschema.validate(call.arguments, PARAMETERS[call.name], cls=jsonschema.Draft202012Validator)
    assert num_whole >= 6
    assert thinking or not num_thoughts


def test_what_cannot_be_enforced_is_refused_at_the_door(
    tiny_llm: TinyLLM, tmp_path: Path, tiny_folder: TinyFolder
) -> None:
    llm = tiny_llm("gemma3")
    with pytest.raises(RequestError, match='"not" is not supported'):
        llm.generate(PROMPT, SamplingParams(json_schema={"not": {}}))
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(tiny_folder("gemma3") / name)
    with pytest.raises(RequestError, match="needs a tokenizer"):
        LLM(tmp_path, threads=1, max_model_len=64).generate([[2, 3]], SamplingParams(json_object=True))


def test_the_command_line_takes_constraints_as_text_from_files_and_in_batches(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tiny_folder: TinyFolder, tmp_path: Path
) -> None:
    run = CommandLine(capsys, monkeypatch)
    folder = tiny_folder("gemma4-e")
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    common = ("--max-tokens", 60, "--temperature", 1, "--seed", 4, "--json")
    for text in (json.dumps(schema), f"@{tmp_path / 'schema.json'}"):
        validate(run("run", folder, PROMPT, "--json-schema", text, *common).json()["text"], schema)
    assert run("run", folder, PROMPT, "--choice", "a, b", "--choice", "c", *common).json()["text"] in ("a, b", "c")
    assert run("run", folder, PROMPT, "--regex", "[0-9]{3}", *common).json()["text"].isdigit()
    assert run("run", folder, PROMPT, "--grammar", 'root ::= "x"+ "y"', *common).json()["text"].strip("x") in ("", "y")
    assert run("run", folder, PROMPT, "--json-object", *common).json()["text"].startswith("{")
    for words, code, told in (
        (("--json-object", "--regex", "a"), 2, "two constraints"),
        (("--json-schema", "@" + str(tmp_path / "none")), 5, "missing"),
        (("--json-schema", "{"), 2, "not JSON"),
        (("--regex", "(a"), 2, "regex"),
        (("--ignore-eos", "--json-object"), 2, "ignore_eos"),
    ):
        outcome = run("run", folder, PROMPT, *words)
        assert (outcome.code, told in outcome.stderr) == (code, True), outcome.stderr
    lines = [
        {"id": 1, "prompt": PROMPT, "json_schema": schema, "max_tokens": 60},
        {"id": 2, "prompt": PROMPT, "choice": ["u", "v"]},
        {"id": 3, "prompt": PROMPT, "json_schema": {"contains": {}}},
        {"id": 4, "prompt": PROMPT, "constraint": "a"},
        {"id": 5, "prompt": PROMPT, "regex": "a", "grammar": "start: A"},
    ]
    (tmp_path / "in").write_text("\n".join(map(json.dumps, lines)))
    assert run("batch", folder, tmp_path / "in", tmp_path / "out").code == 0
    found = {line["id"]: line for line in map(json.loads, (tmp_path / "out").read_text().splitlines())}
    validate(found[1]["text"], schema)
    assert found[2]["text"] in ("u", "v")
    assert '"contains" is not supported' in found[3]["error"]["what"]
    assert found[4]["error"]["what"] == "unknown field"
    assert found[5]["error"]["what"] == "two constraints at once"


def test_coroutines_get_constrained_answers_and_refusals(tiny_llm: TinyLLM) -> None:
    async def ask() -> list[Any]:
        async with AsyncEngine(tiny_llm("gemma3")) as engine:
            wanted: list[dict[str, Any]] = [
                {"choice": ("left", "right")},
                {"regex": "(a"},
                {"json_schema": PARAMETERS["click"]},
            ]
            tasks = [engine.generate(PROMPT, SamplingParams(**SAMPLED, **settings)) for settings in wanted]
            return await asyncio.gather(*tasks, return_exceptions=True)

    chosen, refused, made = asyncio.run(ask())
    assert chosen.text in ("left", "right")
    assert isinstance(refused, RequestError)
    validate(made.text, PARAMETERS["click"])


PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "city": {"enum": ["Paris", "Oslo", None]},
    },
    "required": ["name", "age"],
}


@pytest.mark.slow
def test_the_default_model_writes_json_to_a_schema() -> None:
    llm = LLM(max_model_len=128, kv_cache_memory_bytes=1 << 26)
    prompts = ["Alice, aged 31, lives in Oslo. As JSON: ", "The man is"]
    for settings in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 2}):
        params = SamplingParams(json_schema=PERSON, max_tokens=80, **settings)  # type: ignore[arg-type]
        for completion in llm.generate(prompts, params):
            assert completion.finish_reason is FinishReason.STOP
            validate(completion.text, PERSON)
    (choice,) = llm.generate("Is the sky blue? Answer:", SamplingParams(temperature=0, choice=(" yes", " no")))
    assert choice.text in (" yes", " no")
    assert QUOTE not in str(choice.text)
