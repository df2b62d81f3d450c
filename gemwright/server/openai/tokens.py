"""POST /tokenize and /detokenize: a text or a conversation to the ids that the model would read, and back."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request

from gemwright.engine.llm import LLM
from gemwright.errors import UnsupportedError
from gemwright.server.errors import FieldError
from gemwright.server.openai.tokens_schema import DetokenizeBody, TokenizeBody
from gemwright.server.route import body_of, read_body, service_of
from gemwright.text.tokenizer import Tokenizer

router = APIRouter(tags=["Tokens"])


@router.post("/tokenize", openapi_extra=body_of(TokenizeBody, {"prompt": "The sky is"}))
async def tokenize(request: Request) -> dict[str, Any]:
    """Tell the ids of a text, or of a conversation's prompt, as an answer to it would begin with them.

    They may be more than the context holds: to know that beforehand is what this is asked for.
    """
    service = service_of(request)
    body = await read_body(request, TokenizeBody)
    service.check_model(body.model)
    body.check()
    llm = service.llm
    tokenizer = _tokenizer(llm)
    # Apart, since a long text takes its time.
    ids = await asyncio.to_thread(_ids, llm, tokenizer, body)
    return {
        "count": len(ids),
        "max_model_len": llm.engine.max_model_len,
        "tokens": ids,
        "token_strs": [tokenizer.id_to_token(token_id) for token_id in ids] if body.return_token_strs else None,
    }


@router.post("/detokenize", openapi_extra=body_of(DetokenizeBody, {"tokens": [2, 3]}))
async def detokenize(request: Request) -> dict[str, str]:
    """Tell the text of ids, control words spelled out; bytes that are no character are U+FFFD."""
    service = service_of(request)
    body = await read_body(request, DetokenizeBody)
    service.check_model(body.model)
    llm = service.llm
    tokenizer = _tokenizer(llm)
    # Rows of the model's table past its vocabulary are ids too, which add nothing to a text.
    num_ids = max(llm.core.limits.vocab_size, tokenizer.vocab_size)
    for place, token_id in enumerate(body.tokens):
        if not 0 <= token_id < num_ids:
            limit = f"0 to {num_ids - 1}, the model's vocabulary"
            raise FieldError(f"tokens.{place}", "is no token id", value=str(token_id)[:80], limit=limit)
    return {"prompt": await asyncio.to_thread(tokenizer.decode, body.tokens, skip_special=False)}


def _tokenizer(llm: LLM) -> Tokenizer:
    if llm.tokenizer is None:
        raise UnsupportedError(
            "this checkpoint has no tokenizer files, so it knows no text",
            value=llm.model,
            remedy="count your token ids yourself, or serve a checkpoint that has a tokenizer",
        )
    return llm.tokenizer


def _ids(llm: LLM, tokenizer: Tokenizer, body: TokenizeBody) -> list[int]:
    if body.prompt is not None:
        return tokenizer.encode(body.prompt) if body.add_special_tokens is False else llm.encode(body.prompt)
    prompt = llm.render_chat(
        body.messages,
        tools=body.tools,
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final_message=bool(body.continue_final_message),
        template_kwargs=body.chat_template_kwargs,
    )
    return list(prompt.token_ids)
