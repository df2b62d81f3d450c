"""Compiles constraints for a model's tokenizer, once each; text.matcher follows the answers.

Runs on llguidance, over the bytes of our own tokenizer.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from gemwright.errors import RequestError, UnsupportedError
from gemwright.text.call_grammar import one_call
from gemwright.text.constraint import Constraint, ConstraintKind, ToolSchema
from gemwright.text.free_text import FreeText
from gemwright.text.gbnf import lark_grammar
from gemwright.text.json_schema import prepare, refusal, require_sound
from gemwright.text.matcher import NO_STOP_ID, SMALLER, Matcher, Program, engine_message, mask_words
from gemwright.text.string_patterns import lark_regex
from gemwright.text.tokenizer import Tokenizer
from gemwright.text.tool_syntax import CALL_CLOSE, CALL_OPEN, QUOTE

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

THOUGHT_OPEN, THOUGHT_CLOSE, THOUGHT_LABEL = "<|channel>", "<channel|>", "thought\n"
MARKS = (
    *(THOUGHT_OPEN, THOUGHT_CLOSE, CALL_OPEN, CALL_CLOSE),
    *("<|tool_response>", "<tool_response|>", "<|turn>", "<turn|>", "<start_of_turn>", "<end_of_turn>"),
)
"""Control words that are never spelled letter by letter in free text."""

WHITESPACE = r" |\n {0,20}"
"""What may stand between two tokens of JSON, once: a space, or a line break and its indentation. So no answer is lost
in endless space."""

_STACK_BYTES = 256 << 20
_STACK_LOCK = threading.Lock()
_KEPT_BYTES = 4 << 20
_MAX_KEPT = 32


Result = TypeVar("Result")


class ConstraintCompiler:
    """Compiles constraints for one tokenizer and one model; costs nothing until the first one.

    vocab_size: rows of the model's logits; ids past the tokenizer's are never allowed.
    stop_token_ids: the model's own, which alone end a constrained answer, and only where it is complete.

    May be used by several threads.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, stop_token_ids: Sequence[int]) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.stop_token_ids = tuple(sorted({token_id for token_id in stop_token_ids if token_id < vocab_size}))
        self._lock, self._compiling = threading.Lock(), threading.Lock()
        self._tokens: LLTokenizer | None = None
        self._text: FreeText | None = None
        self._programs: OrderedDict[Constraint, Program] = OrderedDict()

    def check(self, constraint: Constraint) -> None:
        """Compile a constraint and keep it for the answers to come.

        Raises RequestError, naming keyword and place where there is one, for what cannot be enforced, does not
        compile within the limits or admits no answer; UnsupportedError for a thought where the model has none.
        """
        self._program(constraint)

    def start(self, constraint: Constraint) -> Matcher:
        """Return the matcher of one answer. Raises as `check`."""
        return Matcher(self._program(constraint), constraint)

    def _program(self, constraint: Constraint) -> Program:
        if (constraint.thinking or constraint.opens_thought) and None in (
            self._control_id(THOUGHT_OPEN),
            self._control_id(THOUGHT_CLOSE),
        ):
            raise UnsupportedError("this model has no thoughts", limit=THOUGHT_OPEN, remedy="leave thinking off")
        key = constraint.with_thinking(False, False)
        with self._lock:
            if key in self._programs:
                self._programs.move_to_end(key)
                return self._programs[key]
        # One at a time, and apart from those that are ready: who compiles for seconds holds up nobody else.
        with self._compiling:
            with self._lock:
                if key in self._programs:
                    return self._programs[key]
            program = _on_deep_stack(lambda: self._compile(key))
            with self._lock:
                self._programs[key] = program
                sizes = sum(map(_size, self._programs))
                while len(self._programs) > _MAX_KEPT or (len(self._programs) > 1 and sizes > _KEPT_BYTES):
                    sizes -= _size(self._programs.popitem(last=False)[0])
        return program

    def _compile(self, constraint: Constraint) -> Program:
        ids = {word: self._control_id(word) for word in (THOUGHT_OPEN, THOUGHT_CLOSE, CALL_OPEN, CALL_CLOSE, QUOTE)}
        answer, call = None, None
        if constraint.kind is not ConstraintKind.TOOLS:
            answer = self._answer(constraint)
        elif None not in (ids[CALL_OPEN], ids[CALL_CLOSE], ids[QUOTE]):
            known = {word: token_id for word, token_id in ids.items() if token_id is not None}
            grammar = one_call(constraint.tools, known, only_strict=not constraint.must_call)
            call = self._matcher(constraint.kind, _lark(grammar))
        else:
            answer = self._call_in_json(constraint)
        return Program(
            answer,
            call,
            self._free_text(),
            self.stop_token_ids,
            ids[THOUGHT_OPEN],
            ids[THOUGHT_CLOSE],
            tuple(self.tokenizer.encode(THOUGHT_LABEL, parse_special=False)),
            ids[CALL_OPEN],
        )

    def _call_in_json(self, constraint: Constraint) -> LLMatcher:
        """Return the matcher of a call written as JSON text, or of several, each on a line of its own."""
        if not constraint.must_call:
            strict = ", ".join(tool.name for tool in constraint.tools if tool.strict)
            what = "strict tools" if strict else "one call at most"
            raise UnsupportedError(
                f"{what} with tool_choice auto: this model writes calls as text, which may begin anywhere",
                value=strict or None,
                remedy=f"leave {'strict' if strict else 'it'} out, or use tool_choice required or a tool's name",
            )
        for tool in constraint.tools:
            require_sound(f"the parameters of tool {tool.name}", json.loads(tool.parameters))
            if tool.strict:
                self._complain(f"the parameters of tool {tool.name}", json.loads(tool.parameters))
        lenient = not all(tool.strict for tool in constraint.tools)
        grammar = json.loads(_json_grammar(prepare(json_call(constraint.tools)), lenient=lenient))
        (call,) = grammar["grammars"]
        more = r'("\n" @call)*' if constraint.parallel_tool_calls else ""
        calls = {"grammars": [{"lark_grammar": f"start: @call {more}"}, {**call, "name": "call"}]}
        return self._matcher(constraint.kind, json.dumps(calls, ensure_ascii=False))

    def _control_id(self, word: str) -> int | None:
        """Return the id of a control word, None where the model has none."""
        token_id = self.tokenizer.special_tokens.get(word)
        return token_id if token_id is not None and token_id < self.vocab_size else None

    def _free_text(self) -> FreeText:
        if self._text is None:
            words = [word for word in MARKS if word in self.tokenizer.special_tokens]
            self._text = FreeText(self.tokenizer, self.vocab_size, words, self.stop_token_ids)
        return self._text

    def _answer(self, constraint: Constraint) -> LLMatcher:
        kind = constraint.kind
        if kind is ConstraintKind.JSON_SCHEMA:
            return self._matcher(kind, _json_grammar(self._complain(kind, json.loads(constraint.text))))
        if kind is ConstraintKind.REGEX:
            try:
                regex = lark_regex(constraint.text, ascii_classes="d")
            except ValueError as error:
                raise RequestError("regex does not compile", value=str(error), remedy="correct it") from None
            return self._matcher(kind, _lark(f"start: REGEX\nREGEX: /{regex}/"))
        if kind is ConstraintKind.CHOICE:
            texts = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in constraint.choices)
            return self._matcher(kind, _lark(f"start: CHOICE\nCHOICE: {texts}"))
        return self._matcher(kind, _lark(lark_grammar(constraint.text)))

    def _complain(self, name: str, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the schema to compile; raises RequestError, naming keyword and place, for one that is refused."""
        from llguidance import LLMatcher

        def complaint(part: Any) -> str:
            is_error, messages = LLMatcher.validate_grammar_with_warnings(_json_grammar(part), None, limits=_limits())
            return messages[0] if is_error else ""

        require_sound(name, schema)
        prepared = prepare(schema)
        if complaint(prepared):
            raise refusal(name, schema if complaint(schema) else prepared, complaint)
        return prepared

    def _matcher(self, name: str, grammar: str) -> LLMatcher:
        """Compile, and compute the first mask of a copy: what explodes, explodes there."""
        from llguidance import LLMatcher

        matcher = LLMatcher(self._llguidance_tokenizer(), grammar, log_level=0, limits=_limits())
        if matcher.is_error():
            raise RequestError(f"{name} does not compile", value=engine_message(matcher), remedy="correct it")
        trial = matcher.deep_copy()
        words = mask_words(self.vocab_size)
        trial.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if trial.is_error() or not words.any():
            raise RequestError(
                f"{name} admits no answer, or is too complex to follow",
                value=engine_message(trial),
                remedy=SMALLER,
            )
        return matcher

    def _llguidance_tokenizer(self) -> LLTokenizer:
        if self._tokens is None:
            from llguidance import LLTokenizer

            self._tokens = LLTokenizer(
                _Vocabulary(self.tokenizer, self.vocab_size),  # type: ignore[arg-type]  # what it asks of its own class
                n_vocab=self.vocab_size,
                eos_token=list(self.stop_token_ids) or [NO_STOP_ID],
            )
        return self._tokens


class _Vocabulary:
    """What llguidance asks of a tokenizer: every token's bytes, the control tokens, and how text is cut."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        known = min(tokenizer.vocab_size, vocab_size)
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in range(known)] + [b""] * (vocab_size - known)
        self.special_token_ids = [token_id for token_id in tokenizer.special_tokens.values() if token_id < known]
        self.eos_token_id = tokenizer.eos_token_id or 0
        self.bos_token_id = tokenizer.bos_token_id
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, parse_special=False)


def json_call(tools: Sequence[ToolSchema]) -> dict[str, Any]:
    """Return the schema of a call written as JSON text, `{"name": ..., "parameters": {...}}`, as models without a call
    syntax of their own are asked to write it."""
    definitions: dict[str, Any] = {}
    calls = []
    for number, tool in enumerate(tools):
        place = f"#/$defs/tool{number}"
        definitions[f"tool{number}"] = _moved(json.loads(tool.parameters), place)
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": tool.name}, "parameters": {"$ref": place}},
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
        )
    return {"$defs": definitions, "anyOf": calls}


def _moved(schema: Any, place: str) -> Any:
    """Return a schema whose references lead to `place` instead of the root."""
    if isinstance(schema, list):
        return [_moved(item, place) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: place + value[1:]
        if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else _moved(value, place)
        for key, value in schema.items()
    }


def _on_deep_stack(work: Callable[[], Result]) -> Result:
    """Return what `work` returns, done in a thread with room for the deep recursion of a compiler."""
    done: list[Result] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:
            failed.append(error)

    with _STACK_LOCK:
        before = threading.stack_size(_STACK_BYTES)
        try:
            thread = threading.Thread(target=run, name="gemwright-grammar")
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    if failed:
        raise failed[0]
    return done[0]


def _lark(text: str) -> str:
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_lark(text)


def _json_grammar(schema: Any, *, lenient: bool = False) -> str:
    from llguidance import LLMatcher

    options: Any = {"whitespace_pattern": WHITESPACE, "lenient": lenient, "coerce_one_of": lenient}
    return LLMatcher.grammar_from_json_schema(schema, overrides=options)


def _limits() -> LLParserLimits:
    from llguidance import LLParserLimits

    return LLParserLimits(verbose_errors=False)


def _size(constraint: Constraint) -> int:
    parts = [constraint.text, *constraint.choices, *(tool.parameters for tool in constraint.tools)]
    return sum(map(len, parts))
