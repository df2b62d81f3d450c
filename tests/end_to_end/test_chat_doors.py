"""Chats through `run --chat` and `batch`: what is printed where, what is refused, and what the model is given.

What a tiny random model says is set by a grammar.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gemwright import LLM
from gemwright.cli.answers import show_answer
from gemwright.spec.families import read_config
from gemwright.testing import TINY_CONFIGS, write_tiny_checkpoint
from gemwright.testing.checkpoints import random_tensors
from tests.chat_templates import assistant, function, template_source, tool, user
from tests.end_to_end.command_line import CommandLine, Outcome
from tests.tiny_gguf import write_tiny_gguf

SAYS = ["--grammar", 'start: <|channel> "thought\\nLet me see.\\n" <channel|> "All is well."']
CALLS = ["--grammar", 'start: "So: " <|tool_call> "call:f{a:1}" <tool_call|>']
TOOL = function("f", "Looks up.", type="object", properties={"a": {"type": "integer"}}, required=["a"])
OWN = "{{ bos_token }}{% for message in messages %}<|turn>{{ message.role }}:{{ message.content }}<turn|>{% endfor %}"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Tiny models: what they are counts by their names and stop ids, as with published ones."""
    folder = tmp_path_factory.mktemp("models")
    made = {
        "gemma4": write_tiny_checkpoint("gemma4-e", folder / "tiny-gemma-4-it"),
        "gemma3": write_tiny_checkpoint("gemma3", folder / "tiny-gemma-3-it", tokenizer_family="gemma3"),
        "base": write_tiny_checkpoint("gemma4-e", folder / "tiny-gemma-4"),
        "own": write_tiny_checkpoint("gemma4-e", folder / "tiny-own"),
        "broken": write_tiny_checkpoint("gemma4-e", folder / "tiny-broken"),
        "no-words": write_tiny_checkpoint("gemma4-e", folder / "tiny-without-tokenizer-it"),
    }
    (made["own"] / "chat_template.jinja").write_text(OWN)
    (made["broken"] / "chat_template.jinja").write_text("{% if %}")
    (made["no-words"] / "tokenizer.json").unlink()
    return {name: str(path) for name, path in made.items()}


def decoded(model: str, outcome: Outcome) -> str:
    """Return the prompt that an answer in JSON was given to."""
    tokenizer = LLM(model, threads=1, max_model_len=256).tokenizer
    assert tokenizer is not None
    return tokenizer.decode(outcome.json()["prompt_token_ids"], skip_special=False)


def test_a_prompt_is_what_a_user_says(gemwright: CommandLine, models: dict[str, str]) -> None:
    outcome = gemwright("run", models["gemma4"], "Hi <|turn> there", "--chat", *SAYS, "--json")
    assert outcome.code == 0, outcome.stderr
    found = outcome.json()
    assert decoded(models["gemma4"], outcome) == ("<bos><|turn>user\nHi <|turn> there<turn|>\n<|turn>model\n")
    assert found["prompt_token_ids"].count(105) == 2
    assert (found["reasoning_content"], found["content"], found["text"]) == (
        "Let me see.",
        "All is well.",
        "All is well.",
    )
    assert found["tool_calls"] == []
    assert found["finish_reason"] == "stop"
    assert found["token_ids"][-1] in (1, 106, 50)
    plain = gemwright("run", models["gemma4"], "Hi", "--max-tokens", 3, "--json").json()
    assert "content" not in plain
    assert "tool_calls" not in plain


def test_system_and_thinking_reach_the_template(gemwright: CommandLine, models: dict[str, str]) -> None:
    words = ["run", models["gemma4"], "Hi", "--chat", "--system", "Be brief.", "--max-tokens", 1, "--json"]
    thinks = gemwright(*words, "--think")
    assert "<|turn>system\n<|think|>\nBe brief.<turn|>\n" in decoded(models["gemma4"], thinks)
    for more in ((), ("--no-think",)):
        assert "<|turn>system\nBe brief.<turn|>\n" in decoded(models["gemma4"], gemwright(*words, *more))
    gemwright.monkeypatch.setenv("GEMWRIGHT_THINK", "1")
    gemwright.monkeypatch.setenv("GEMWRIGHT_SYSTEM", "From afar.")
    found = decoded(models["gemma4"], gemwright("run", models["gemma4"], "Hi", "--chat", "--max-tokens", 1, "--json"))
    assert "<|think|>\nFrom afar.<turn|>" in found
    # Variables are for whoever chats: a plain completion is none of theirs.
    assert gemwright("run", models["gemma4"], "Hi", "--max-tokens", 1).code == 0


def test_the_answer_goes_to_stdout_and_the_thought_to_stderr(gemwright: CommandLine, models: dict[str, str]) -> None:
    outcome = gemwright("run", models["gemma4"], "Hi", "--chat", *SAYS)
    assert outcome.code == 0, outcome.stderr
    assert outcome.stdout == "All is well.\n"
    assert outcome.stderr.startswith("Let me see.\n")
    several = gemwright("run", models["gemma4"], "Hi", "--chat", *SAYS, "--n", 2)
    assert several.stdout == "--- 1 of 2\nAll is well.\n--- 2 of 2\nAll is well.\n"
    assert several.stderr.startswith("Let me see.\nLet me see.\n")


def test_a_thought_is_dim_on_a_terminal(
    models: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = LLM(models["gemma4"], threads=1, max_model_len=256)
    params = llm.sampling_params(grammar=SAYS[1])
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    completion = show_answer(llm, llm.render_chat([user("Hi")]), params, None)
    shown = capsys.readouterr()
    assert (shown.out, completion.text) == ("All is well.\n", "All is well.")
    assert set(shown.err.replace("\x1b[2m", "<").replace("\x1b[0m", ">")) >= {"<", ">"}
    assert re.sub(r"\x1b\[[02]m", "", shown.err) == "Let me see.\n"
    monkeypatch.setenv("NO_COLOR", "1")
    show_answer(llm, llm.render_chat([user("Hi")]), params, None)
    assert capsys.readouterr().err == "Let me see.\n"


def test_a_call_that_nobody_asked_for_is_shown(gemwright: CommandLine, models: dict[str, str]) -> None:
    outcome = gemwright("run", models["gemma4"], "Hi", "--chat", *CALLS)
    assert outcome.stdout == "So: call:f{a:1}\n"
    assert gemwright("run", models["gemma4"], "Hi", "--chat", *CALLS, "--json").json()["finish_reason"] == "stop"


def test_stop_ids_are_all_that_the_model_and_its_tokenizer_name(models: dict[str, str]) -> None:
    # Field cases 047, 048: the tiny configs name 1 alone.
    def stops(name: str, **options: Any) -> list[int]:
        return sorted(LLM(models[name], threads=1, max_model_len=64, **options).core.eos_token_ids)

    assert stops("gemma4") == stops("own") == stops("broken") == [1, 50, 106]
    assert stops("gemma3") == [1, 106]
    assert stops("base") == [1]
    assert stops("base", chat_template="gemma4") == [1, 50, 106]
    assert stops("no-words") == [1]


def test_a_gguf_chat_model_stops_and_answers_by_its_own_template(gemwright: CommandLine, tmp_path: Path) -> None:
    spec = read_config(TINY_CONFIGS["gemma3"])
    source = template_source("gemma3")
    path = write_tiny_gguf(tmp_path / "tiny.gguf", spec, random_tensors(spec, 0), chat_template=source)
    assert sorted(LLM(path, threads=1, max_model_len=64).core.eos_token_ids) == [1, 106]
    outcome = gemwright("run", path, "Hi", "--chat", "--max-tokens", 1, "--json")
    assert outcome.code == 0, outcome.stderr
    ids = [108 + byte if byte != 10 else 107 for byte in b"user\nHi"]
    model = [108 + byte if byte != 10 else 107 for byte in b"model\n"]
    assert outcome.json()["prompt_token_ids"] == [2, 105, *ids, 106, 107, 105, *model]


def test_gemma2_stops_at_its_own_end_of_turn(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint("gemma2", tmp_path / "gemma-2-it", tokenizer_family="gemma2")
    llm = LLM(folder, threads=1, max_model_len=64)
    assert sorted(llm.core.eos_token_ids) == [1, 107]
    assert llm.render_chat([user("U")]).dialect == "gemma2"


def test_the_models_own_template_goes_first_and_the_users_before_it(
    gemwright: CommandLine, models: dict[str, str], tmp_path: Path
) -> None:
    words = ["run", models["own"], "Hi", "--chat", "--max-tokens", 1, "--json"]
    assert decoded(models["own"], gemwright(*words)) == "<bos><|turn>user:Hi<turn|>"
    built_in = gemwright(*words, "--chat-template", "gemma4-large")
    assert decoded(models["own"], built_in).endswith("<|turn>model\n<|channel>thought\n<channel|>")
    (tmp_path / "mine.jinja").write_text("{{ messages[0].content }}!")
    assert decoded(models["own"], gemwright(*words, "--chat-template", tmp_path / "mine.jinja")) == "<bos>Hi!"


def test_a_broken_template_stops_chats_alone(gemwright: CommandLine, models: dict[str, str]) -> None:
    assert gemwright("run", models["broken"], "Hi", "--max-tokens", 2).code == 0
    refused = gemwright("run", models["broken"], "Hi", "--chat")
    assert refused.code == 5
    assert "no valid template" in refused.stderr
    assert gemwright("run", models["broken"], "Hi", "--chat", "--chat-template", "gemma4", "--max-tokens", 1).code == 0


@pytest.mark.parametrize(
    ("model", "flags", "code", "says"),
    [
        ("base", ["--chat"], 3, "--chat-template"),
        ("no-words", ["--chat"], 3, "needs a tokenizer"),
        ("gemma3", ["--chat", "--think"], 2, "no thinking switch"),
        ("gemma4", ["--chat", "--chat-template", "gemma3"], 3, "vocabulary"),
        ("gemma4", ["--chat", "--chat-template", "nowhere.jinja"], 5, "no chat template"),
        ("gemma4", ["--system", "S"], 2, "--system is for chats"),
        ("gemma4", ["--think"], 2, "--think is for chats"),
        ("gemma4", ["--no-think"], 2, "--no-think is for chats"),
        ("gemma4", ["--chat-template", "gemma4"], 2, "--chat-template is for chats"),
    ],
)
def test_what_cannot_be_chatted_is_refused(
    gemwright: CommandLine, models: dict[str, str], model: str, flags: list[str], code: int, says: str
) -> None:
    outcome = gemwright("run", models[model], "Hi", *flags)
    assert (outcome.code, outcome.stdout) == (code, ""), outcome.stderr
    assert says in outcome.stderr


def test_ids_are_no_chat(gemwright: CommandLine, models: dict[str, str]) -> None:
    outcome = gemwright("run", models["gemma4"], "--token-ids", "2,5", "--chat")
    assert outcome.code == 2
    assert "--chat is for text" in outcome.stderr


def test_a_base_model_is_refused_before_its_weights_are_read(
    gemwright: CommandLine, models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gemwright.engine.llm.start_engine", lambda *_: pytest.fail("the weights are read"))
    assert gemwright("run", models["base"], "Hi", "--chat").code == 3


@pytest.mark.slow
def test_the_default_model_completes_and_does_not_chat(gemwright: CommandLine) -> None:
    refused = gemwright("run", "Hi", "--chat")
    assert refused.code == 3
    assert "base model" in refused.stderr
    assert "--chat-template" in refused.stderr
    words = ["run", "Hi", "--chat", "--chat-template", "gemma3", "--max-tokens", 2, "--json"]
    found = gemwright(*words, "--max-model-len", 128).json()
    assert found["prompt_token_ids"] == [2, 105, 2364, 107, 10979, 106, 107, 105, 4368, 107]
    assert found.keys() >= {"reasoning_content", "content", "tool_calls"}


def batch(
    gemwright: CommandLine, tmp_path: Path, model: str, lines: list[dict[str, Any]], *flags: str
) -> dict[str, Any]:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    target.unlink(missing_ok=True)
    outcome = gemwright("batch", model, source, target, "--max-model-len", 512, *flags)
    assert outcome.code == 0, outcome.stderr
    return {output["id"]: output for output in map(json.loads, target.read_text().splitlines())}


def test_lines_with_messages_are_answered_as_chats(
    gemwright: CommandLine, models: dict[str, str], tmp_path: Path
) -> None:
    history = [user("U"), assistant("", ("c1", "f", {"a": 1})), tool("c1", "42")]
    lines: list[dict[str, Any]] = [
        {"id": "chat", "messages": [user("Hi")], "grammar": SAYS[1]},
        {"id": "thinks", "messages": [user("Hi")], "enable_thinking": True, "max_tokens": 1},
        {"id": "kwargs", "messages": [user("Hi")], "chat_template_kwargs": {"enable_thinking": True}, "max_tokens": 1},
        {"id": "tools", "messages": [user("Hi")], "tools": [TOOL], "grammar": CALLS[1]},
        {"id": "must", "messages": [user("Hi")], "tools": [TOOL], "tool_choice": "required", "max_tokens": 60},
        {"id": "none", "messages": [user("Hi")], "tools": [TOOL], "tool_choice": "none", "max_tokens": 1},
        {"id": "history", "messages": history, "tools": [TOOL], "max_tokens": 1},
        {
            "id": "goes on",
            "messages": [user("Hi"), assistant("It is")],
            "continue_final_message": True,
            "max_tokens": 1,
        },
        {"id": "plain", "prompt": "Hi", "max_tokens": 1},
        {"id": "two", "messages": [user("Hi")], "n": 2, "max_tokens": 2},
    ]
    found = batch(gemwright, tmp_path, models["gemma4"], lines)
    tokenizer = LLM(models["gemma4"], threads=1, max_model_len=256).tokenizer
    assert tokenizer is not None
    prompts = {name: tokenizer.decode(one["prompt_token_ids"], skip_special=False) for name, one in found.items()}
    assert (found["chat"]["reasoning_content"], found["chat"]["content"]) == ("Let me see.", "All is well.")
    assert prompts["chat"] == prompts["none"] == "<bos><|turn>user\nHi<turn|>\n<|turn>model\n"
    assert "<|think|>" in prompts["thinks"]
    assert prompts["kwargs"] == prompts["thinks"]
    assert "declaration:f{" in prompts["tools"]
    assert found["tools"]["content"] == "So: "
    assert found["tools"]["tool_calls"] == [{"name": "f", "arguments": {"a": 1}}]
    assert found["tools"]["finish_reason"] == "tool_calls"
    assert found["must"]["token_ids"][0] == 48
    assert prompts["history"].endswith('response:f{value:<|"|>42<|"|>}<tool_response|>')
    assert prompts["goes on"].endswith("<|turn>model\nIt is")
    assert "content" not in found["plain"]
    assert all(choice.keys() >= {"content", "tool_calls"} for choice in found["two"]["choices"])
    # The same answer as the other doors give.
    run = gemwright("run", models["gemma4"], "Hi", "--chat", *SAYS, "--max-model-len", 512, "--json").json()
    same = ("prompt_token_ids", "token_ids", "text", "content", "reasoning_content", "tool_calls", "finish_reason")
    assert {name: found["chat"][name] for name in same} == {name: run[name] for name in same}


def test_bad_chats_get_an_error_and_the_rest_go_on(
    gemwright: CommandLine, models: dict[str, str], tmp_path: Path
) -> None:
    messages = [user("Hi")]
    bad = [
        ({"messages": "Hi"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [user([{"type": "image_url"}])]}, "image"),
        ({"messages": messages, "prompt": "x"}, "more than one prompt"),
        ({"prompt": "x", "enable_thinking": False}, "enable_thinking goes with messages"),
        ({"messages": messages, "enable_thinking": 1}, "enable_thinking"),
        ({"messages": messages, "continue_final_message": True}, "continue_final_message"),
        ({"messages": messages, "continue_final_message": "yes"}, "continue_final_message"),
        ({"messages": messages, "chat_template_kwargs": {"x": 1}}, "chat_template_kwargs"),
        ({"messages": messages, "chat_template_kwargs": 1}, "chat_template_kwargs"),
        ({"messages": messages, "tools": 5}, "tools"),
        ({"messages": messages, "tools": 5, "tool_choice": "none"}, "tools"),
        ({"messages": messages, "tools": [TOOL, TOOL]}, "tools[1]"),
        ({"messages": messages, "tools": [TOOL], "tool_choice": "g"}, "tool_choice"),
        ({"messages": messages, "tools": [TOOL], "tool_choice": [1]}, "tool_choice"),
        ({"messages": messages, "tool_choice": "required"}, "tool_choice"),
        ({"messages": messages, "tools": [TOOL], "parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"messages": messages, "tools": [TOOL], "tool_choice": "required", "regex": "a"}, "two constraints"),
        ({"messages": [user("x" * 600)]}, "no room"),
    ]
    lines = [{"id": number, **line} for number, (line, _) in enumerate(bad)]
    found = batch(
        gemwright, tmp_path, models["gemma4"], [*lines, {"id": "good", "messages": messages, "max_tokens": 1}]
    )
    assert "error" not in found.pop("good")
    for number, (_, what) in enumerate(bad):
        assert what in found[number]["error"]["what"], found[number]
    refused = batch(gemwright, tmp_path, models["base"], [{"id": 1, "messages": messages}])
    assert "base model" in refused[1]["error"]["what"]
    chosen = [{"id": 1, "messages": messages, "max_tokens": 1}]
    assert "content" in batch(gemwright, tmp_path, models["base"], chosen, "--chat-template", "gemma4")[1]
    assert "no valid template" in batch(gemwright, tmp_path, models["broken"], chosen)[1]["error"]["what"]


def test_suppressed_tokens_are_never_chosen(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint("gemma3", tmp_path / "tiny")
    llm = LLM(folder, threads=1, max_model_len=64)
    params = llm.sampling_params(max_tokens=12, ignore_eos=True)
    (free,) = llm.generate("Hi", params)
    suppressed = sorted({*free.token_ids[:6], 4_000_000})
    (folder / "generation_config.json").write_text(json.dumps({"suppress_tokens": suppressed}))
    suppressing = LLM(folder, threads=1, max_model_len=64)
    (kept,) = suppressing.generate("Hi", params)
    assert not set(kept.token_ids) & set(suppressed)
    (drawn,) = suppressing.generate("Hi", llm.sampling_params(max_tokens=40, temperature=50.0, seed=1, n=1))
    assert not set(drawn.token_ids) & set(suppressed)


@pytest.mark.parametrize("bad", ["5", [1.5], [-1], [True], {"a": 1}])
def test_suppressed_tokens_that_are_no_ids_are_refused(gemwright: CommandLine, tmp_path: Path, bad: Any) -> None:
    folder = write_tiny_checkpoint("gemma3", tmp_path / "tiny")
    (folder / "generation_config.json").write_text(json.dumps({"suppress_tokens": bad}))
    outcome = gemwright("run", folder, "Hi")
    assert outcome.code == 5
    assert "suppress_tokens" in outcome.stderr
