"""Chats rendered by us and by transformers: the same text and the same ids, through Jinja and without."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from gemwright.text.template import BUILT_IN, ChatTemplate
from tests.chat_templates import (
    CONTROL_WORDS,
    alternating,
    built_in,
    byte_folder,
    conversations,
    template_source,
    through_jinja,
    tools_lists,
)

Messages = list[dict[str, Any]]
GEMMA4 = ("gemma4", "gemma4-large")


@cache
def reference(name: str) -> PreTrainedTokenizerFast:
    folder = byte_folder(name.removesuffix("-large"))
    return PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        bos_token="<bos>",
        eos_token="<eos>",
        chat_template=template_source(name),
    )


def ours(name: str) -> list[ChatTemplate]:
    return [built_in(name), through_jinja(name)]


def text_before_calls(messages: Messages) -> Messages:
    """Return what we let a template see of a Gemma 4 chat: text beside calls stands before them (docs/templates.md)."""
    found = []
    for message in messages:
        text = message["content"] if isinstance(message["content"], str) else ""
        kept = "".join(part.partition("<|channel>")[0] for part in text.split("<channel|>")).strip()
        if message["role"] == "assistant" and message.get("tool_calls") and kept:
            found.append({key: value for key, value in message.items() if key != "tool_calls"})
            found.append({"role": "assistant", "content": "", "tool_calls": message["tool_calls"]})
        else:
            found.append(message)
    return found


def check(name: str, messages: Messages, tools: Any = None, thinking: bool | None = None, **choices: Any) -> None:
    variables = {} if thinking is None else {"enable_thinking": thinking}
    kwargs = choices.pop("template_kwargs", None)
    preserves = bool((kwargs or {}).get("preserve_thinking"))
    seen = text_before_calls(messages) if name in GEMMA4 and not preserves else messages
    text = reference(name).apply_chat_template(
        seen, tools=tools or None, tokenize=False, **variables, **choices, **(kwargs or {})
    )
    assert isinstance(text, str)
    ids = reference(name).encode(text, add_special_tokens=False)
    says_control_words = any(word in repr(messages) + repr(tools) for word in CONTROL_WORDS)
    for template in ours(name):
        prompt = template.render(messages, tools=tools, enable_thinking=thinking, template_kwargs=kwargs, **choices)
        assert prompt.text == text
        if not says_control_words:
            assert list(prompt.token_ids) == ids


@pytest.mark.parametrize("name", GEMMA4)
@given(
    messages=conversations(),
    tools=tools_lists(),
    thinking=st.sampled_from([None, False, True]),
    add_generation_prompt=st.booleans(),
    preserves=st.sampled_from([None, False, True]),
)
@settings(max_examples=150)
def test_gemma4_chats_are_rendered_alike(
    name: str,
    messages: Messages,
    tools: list[Any],
    thinking: bool | None,
    add_generation_prompt: bool,
    preserves: bool | None,
) -> None:
    kwargs = None if preserves is None else {"preserve_thinking": preserves}
    check(name, messages, tools, thinking, add_generation_prompt=add_generation_prompt, template_kwargs=kwargs)


@given(messages=conversations(ends_open=True), thinking=st.booleans())
@settings(max_examples=60)
def test_a_gemma4_answer_is_gone_on_with_alike(messages: Messages, thinking: bool) -> None:
    # What transformers leaves of a thought in the text that is gone on with, we refuse.
    if "channel" not in messages[-1]["content"]:
        check("gemma4-large", messages, thinking=thinking, continue_final_message=True, add_generation_prompt=False)


@pytest.mark.parametrize("name", ["gemma2", "gemma3"])
@given(data=st.data(), add_generation_prompt=st.booleans(), continues=st.booleans())
@settings(max_examples=80)
def test_gemma2_and_gemma3_chats_are_rendered_alike(
    name: str, data: st.DataObject, add_generation_prompt: bool, continues: bool
) -> None:
    messages = data.draw(alternating(with_system=name == "gemma3", ends_open=continues))
    add_generation_prompt = add_generation_prompt and not continues
    check(name, messages, add_generation_prompt=add_generation_prompt, continue_final_message=continues)


def test_all_templates_are_compared() -> None:
    assert set(BUILT_IN) == {"gemma2", "gemma3", *GEMMA4}
