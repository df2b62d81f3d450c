"""The room in which a checkpoint's chat template runs: as transformers sets it up, closed, counted and measured.

A template sees plain data and what transformers shows it, and reaches nothing else: no file, no module, no Python
object. Filters of no use to chats are not there: pprint, random, striptags, urlize, wordwrap, xmlattr, filesizeformat.
Knows nothing of models, messages or files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cache, wraps
from typing import Any

from jinja2 import ext, filters, nodes, sandbox
from jinja2.compiler import CodeGenerator, Frame, operators
from jinja2.exceptions import SecurityError
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.utils import Namespace, pass_environment, pass_eval_context

from gemwright.text.template_limits import (
    CONTAINERS,
    MAX_BITS,
    MAX_WIDTH,
    active,
    fit,
    foresee,
    foresee_percent,
    narrow,
)

_FILTERS = (
    "abs attr batch capitalize count d default dictsort e escape first float forceescape groupby int items last length"
    " list lower map max min reject rejectattr reverse round safe select selectattr slice sort string title truncate"
    " unique upper urlencode wordcount"
)
"""Filters taken as they are; the others of transformers' that chats use are written anew below."""
_WIDE_FILTERS = ("do_batch", "do_slice", "do_round")
_UNSAFE_OF_TEXT = ("translate", "maketrans", "expandtabs", "encode")
_OF_NUMBERS = ("is_integer", "bit_length", "real", "imag")


class RefusalError(Exception):
    """The template called raise_exception."""


class _Generator(CodeGenerator):
    """Compiles with a count in each block, and around each expression that makes or compares values."""

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        self.writeline("environment.tick()")
        super().blockvisit(nodes, frame)

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802
        if node.test is not None:
            node.test = nodes.And(nodes.Call(nodes.EnvironmentAttribute("tick"), [], [], None, None), node.test)
        super().visit_For(node, frame)

    def visit_Operand(self, node: nodes.Operand, frame: Frame) -> None:  # noqa: N802
        self.write(f" {operators[node.op]} environment.compared(")
        self.visit(node.expr, frame)
        self.write(")")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.joined(markup_join if context.eval_ctx.autoescape else str_join, (")
        for item in node.nodes:
            self.visit(item, frame)
            self.write(", ")
        self.write("))")

    def _measured(self, visit: Callable[[Any, Frame], None], node: nodes.Node, frame: Frame) -> None:
        self.write("environment.made(")
        visit(node, frame)
        self.write(")")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        self._measured(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        self._measured(super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        if node.ctx == "load":
            self._measured(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802
        if isinstance(node.arg, nodes.Slice):
            self._measured(super().visit_Getitem, node, frame)
        else:
            super().visit_Getitem(node, frame)


class _Generation(ext.Extension):
    """{% generation %} marks for training what the model said: here its body is shown, and nothing else."""

    tags = frozenset({"generation"})  # type: ignore[assignment]

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("shown"), [], [], body, lineno=line)

    def shown(self, caller: Callable[[], str]) -> str:
        return caller()


class _Formatter(sandbox.SandboxedFormatter):
    """str.format with its fields counted."""

    size = 0

    def format_field(self, value: Any, format_spec: str) -> Any:
        narrow(*(int(digits[:9]) for digits in re.findall(r"\d+", format_spec)))
        text = super().format_field(value, format_spec)
        self.size += len(text)
        fit(self.size)
        return text


class _Namespace(Namespace):
    """A namespace without private names, and opaque when shown: it may hold itself."""

    def __init__(*arguments: Any, **named: Any) -> None:
        self, values = arguments[0], dict(*arguments[1:], **named)
        Namespace.__init__(self)
        for name, value in values.items():
            self[name] = value

    def __setitem__(self, name: Any, value: Any) -> None:
        if not isinstance(name, str) or name.startswith("_"):
            raise SecurityError(f"a namespace holds no {name!r}")
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


class _Dict:
    """What templates call dict: no type, so that nothing is to be reached through it."""

    def __call__(self, *arguments: Any, **named: Any) -> dict[Any, Any]:
        return dict(*arguments, **named)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return {key: value for key in keys if active.get().tick()}


class _Environment(sandbox.ImmutableSandboxedEnvironment):
    """The sandbox, with everything that makes values counted."""

    code_generator_class = _Generator
    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "**", "%"))

    def tick(self) -> bool:
        return active.get().tick()

    def made(self, value: Any) -> Any:
        return active.get().made(value)

    def compared(self, value: Any) -> Any:
        active.get().tick()
        return value

    def joined(self, join: Callable[[Iterable[Any]], str], values: Iterable[Any]) -> str:
        texts, size = [], 0
        for value in values:
            texts.append(value if isinstance(value, str) else str(value))
            size += len(texts[-1])
            fit(size)
        active.get().tick()
        text: str = self.made(join(texts))
        return text

    def concat(self, pieces: Iterable[str]) -> str:
        return self.joined("".join, pieces)

    def call(self, context: Context, obj: Any, /, *arguments: Any, **named: Any) -> Any:
        active.get().tick()
        given, receiver = list(arguments), getattr(obj, "__self__", None)
        if isinstance(receiver, str):
            foresee(receiver, obj.__name__, given, named)
        return self.made(super().call(context, obj, *given, **named))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        active.get().tick()
        if operator == "%" and isinstance(left, str):
            foresee_percent(left, right)
        elif operator == "*" and isinstance(left, (str, *CONTAINERS)) and isinstance(right, int):
            fit(active.get().weigh(left) * right)
        elif operator == "*" and isinstance(right, (str, *CONTAINERS)) and isinstance(left, int):
            fit(active.get().weigh(right) * left)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            fit(left.bit_length() * right, MAX_BITS, "makes too large a number")
        return self.made(super().call_binop(context, operator, left, right))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, (int, float, complex)) and attr not in _OF_NUMBERS:
            return False
        if isinstance(obj, str) and (attr in _UNSAFE_OF_TEXT or not hasattr(str, attr)):
            return False
        return super().is_safe_attribute(obj, attr, value) and not (isinstance(obj, dict) and attr == "fromkeys")

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise SecurityError(f"attribute {attribute!r} of a {type(obj).__name__} is closed to templates")

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is None:
            return None
        text, takes_map = value.__self__, value.__name__ == "format_map"
        if type(text) is not str:
            raise SecurityError("format of escaped text is closed to templates")

        def format_text(*arguments: Any, **named: Any) -> str:
            if takes_map:
                return _Formatter(self).vformat(text, (), *arguments, **named)
            return _Formatter(self).vformat(text, arguments, named)

        return format_text


def _counted(function: Any) -> Callable[..., Any]:
    """Return a filter or test that counts, and measures what it gives."""

    @wraps(function)
    def counted(*arguments: Any, **named: Any) -> Any:
        active.get().tick()
        if function.__name__ in _WIDE_FILTERS:
            narrow(*(item for item in (*arguments, *named.values()) if isinstance(item, int)))
        return active.get().made(function(*arguments, **named))

    return counted


def _to_json(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    narrow(indent, *(separators or ()))
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    if indent is None and len("".join(separators or ())) < 8:
        return encoder.encode(x)
    pieces, size = [], 0
    for piece in encoder.iterencode(x):
        pieces.append(piece)
        size += len(piece)
        fit(size)
    return "".join(pieces)


@pass_eval_context
def _join(context: Any, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        value = map(filters.make_attrgetter(context.environment, attribute), value)
    texts, size = [], 0
    for item in value:
        texts.append(item if isinstance(item, str) else str(item))
        size += len(texts[-1]) + len(str(d))
        fit(size)
    return str(filters.sync_do_join(context, texts, d))


@pass_environment
def _sum(environment: Any, iterable: Iterable[Any], attribute: str | int | None = None, start: Any = 0) -> Any:
    if attribute is not None:
        iterable = map(filters.make_attrgetter(environment, attribute), iterable)
    for item in iterable:
        start = environment.call_binop(None, "+", start, item)
    return start


@pass_eval_context
def _replace(context: Any, s: str, old: str, new: str, count: int | None = None) -> str:
    foresee(str(s), "replace", [str(old), str(new)], {})
    return filters.do_replace(context, s, old, new, count)


def _indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    narrow(width)
    fit((len(width) if isinstance(width, str) else width) * (len(s) + 2))
    return filters.do_indent(s, width, first, blank)


def _trim(value: str, chars: str | None = None) -> str:
    narrow(chars)
    return filters.do_trim(value, chars)


def _center(value: str, width: int = 80) -> str:
    narrow(width)
    return filters.do_center(value, width)


def _format(value: str, *arguments: Any, **named: Any) -> str:
    foresee_percent(str(value), named or arguments)
    return filters.do_format(value, *arguments, **named)


def _shown(value: Any) -> str:
    """Return an output expression's text, measured."""
    return value if isinstance(value, str) else str(active.get().made(str(value)))


def _raise_exception(message: Any) -> None:
    raise RefusalError(str(message)[:MAX_WIDTH])


def _strftime_now(format: str) -> str:
    narrow(format)
    return datetime.now().strftime(format)


@cache
def environment() -> _Environment:
    """Return what all templates are compiled in, set up as transformers does."""
    made = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, ext.loopcontrols], finalize=_shown
    )
    own = {"join": _join, "sum": _sum, "tojson": _to_json, "replace": _replace, "indent": _indent, "trim": _trim}
    own |= {"format": _format, "center": _center, **{name: made.filters[name] for name in _FILTERS.split()}}
    made.filters = {name: _counted(function) for name, function in own.items()}
    made.tests = {name: _counted(function) for name, function in made.tests.items()}
    del made.globals["lipsum"]
    made.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    made.globals |= {"dict": _Dict(), "namespace": _Namespace}
    return made
