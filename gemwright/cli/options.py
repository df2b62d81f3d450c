"""Flags that verbs share: their names, types, environment variables and help."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from gemwright.cli.completion import complete_model
from gemwright.cli.text_files import TextOrFile

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Decorator = Callable[[Decorated], Decorated]

_SIZE = re.compile(r"(\d+)\s*(?:([KMGT])iB|B)?")
_UNITS = {None: 0, "K": 10, "M": 20, "G": 30, "T": 40}


@dataclass(slots=True)
class Settings:
    """What holds for the program as a whole, whatever the verb."""

    debug: bool = False


class Bytes(click.ParamType):  # type: ignore[type-arg]  # generic in new releases only
    """A size in bytes: 1048576, or with a binary unit 1024KiB, 1MiB."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes, or fail as a usage error."""
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            self.fail(f"{value!r} is no size: give bytes, or a number and KiB, MiB, GiB or TiB", param, ctx)
        return int(match[1]) << _UNITS[match[2]]


class TokenIds(click.ParamType):  # type: ignore[type-arg]  # generic in new releases only
    """Token ids with commas between: 2,651,9041."""

    name = "ids"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the ids, or fail as a usage error."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is no list of token ids such as 2,651,9041", param, ctx)


class Biases(click.ParamType):  # type: ignore[type-arg]  # generic in new releases only
    """Token ids with what is added to their logits: 2=-100,651=1.5."""

    name = "biases"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[int, float]:
        """Return the mapping, or fail as a usage error."""
        if isinstance(value, dict):
            return value
        try:
            pairs = [(int(token), float(bias)) for token, bias in (part.split("=") for part in value.split(","))]
        except ValueError:
            self.fail(f"{value!r} is no list of biases such as 2=-100,651=1.5", param, ctx)
        if len(dict(pairs)) < len(pairs):
            self.fail(f"{value!r} names a token twice", param, ctx)
        return dict(pairs)


class WholeText(click.ParamType):  # type: ignore[type-arg]  # generic in new releases only
    """A text that its environment variable gives as one, spaces included."""

    name = "text"

    def split_envvar_value(self, rv: str) -> list[str]:
        """Return the variable's value as the one item of a repeatable flag."""
        return [rv]


class SectionOption(click.Option):
    """An option that the help lists under a heading of its own."""

    def __init__(self, *names: Any, section: str, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.section = section


class SectionCommand(click.Command):
    """A command whose help lists its options by section, and which takes no flag with one value twice."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line, or fail as a usage error; of two values none would be known to be meant."""
        if not ctx.resilient_parsing:
            self._refuse_repeats(ctx, list(args))
        return super().parse_args(ctx, args)

    def _refuse_repeats(self, ctx: click.Context, args: list[str]) -> None:
        _, _, given = self.make_parser(ctx).parse_args(args)
        for parameter in dict.fromkeys(given):
            if not isinstance(parameter, click.Option) or parameter.multiple or given.count(parameter) == 1:
                continue
            # A switch that is said twice means the same, unless it has an opposite.
            if not parameter.is_flag or parameter.secondary_opts:
                names = "/".join((*parameter.opts, *parameter.secondary_opts))
                raise click.UsageError(f"{names} is given {given.count(parameter)} times: give it once", ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one list for each section, in the order of their first options; arguments stand in the text."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                sections.setdefault(getattr(parameter, "section", "Other"), []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def option(section: str, flag: str, help: str, *, short: str | None = None, **settings: Any) -> Decorator:  # type: ignore[type-arg]  # any callable
    """Return a click option that also reads the environment variable GEMWRIGHT_<FLAG>; `short` is such as -y.

    A switch is written --flag/--no-flag; its variable is that of --flag.
    """
    name, _, _ = flag.removeprefix("--").partition("/")
    variable = f"GEMWRIGHT_{name.replace('-', '_').upper()}"
    names = (flag,) if short is None else (short, flag)
    return click.option(
        *names, cls=SectionOption, section=section, help=help, envvar=variable, show_envvar=True, **settings
    )


def _together(*decorators: Decorator) -> Decorator:  # type: ignore[type-arg]  # any callable
    """Return one decorator that adds options in the order given."""

    def decorate(function: Decorated) -> Decorated:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def _remember_debug(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    ctx.find_object(Settings).debug = value  # type: ignore[union-attr]  # main always gives one


revision_option = option("Model", "--revision", "Revision of a hub id; left out, main.")
offline_option = option(
    "Model",
    "--offline",
    "Never ask the hub. Without it too, a model that is in the local cache is used as it is (`pull` looks for a newer "
    "one), and only what is not there is fetched.",
    is_flag=True,
)
unknown_keys_option = option(
    "Model",
    "--allow-unknown-config-keys",
    "Accept config keys whose effect on the maths is unknown.",
    is_flag=True,
)
found_model_options = _together(
    option(
        "Model",
        "--model",
        "Hub id, folder or .gguf file; left out, the default model.",
        shell_complete=complete_model,
    ),
    revision_option,
    offline_option,
    unknown_keys_option,
)
model_options = _together(
    found_model_options,
    option(
        "Model",
        "--chat-template",
        "How chats are written for the model: gemma2, gemma3, gemma4, gemma4-large, or a Jinja file; left out, the "
        "model's own template, or that of its family.",
    ),
)

sampling_options = _together(
    option(
        "Sampling",
        "--max-tokens",
        "Tokens of an answer at most; left out, 256, and in a chat what the context has room for.",
        type=int,
    ),
    option(
        "Sampling",
        "--temperature",
        "0 is greedy. This flag and the next four: left out, as the model's generation config says; greedy if it "
        "says nothing.",
        type=float,
    ),
    option("Sampling", "--top-k", "Choose among the k most likely tokens; 0 is off.", type=int),
    option("Sampling", "--top-p", "Choose among the fewest tokens whose probabilities reach p.", type=float),
    option("Sampling", "--min-p", "Choose among tokens at least p times as likely as the best.", type=float),
    option("Sampling", "--repetition-penalty", "Above 1, make tokens seen before less likely.", type=float),
    option("Sampling", "--presence-penalty", "Taken from the logit of tokens in the answer.", type=float),
    option("Sampling", "--frequency-penalty", "The same, times how often.", type=float),
    option("Sampling", "--seed", "Makes a random choice repeatable.", type=int),
    option("Sampling", "--n", "Number of answers; left out, 1.", type=int),
    option("Sampling", "--min-tokens", "Do not stop before so many tokens.", type=int),
    option(
        "Sampling",
        "--stop",
        "Text that ends the answer, itself left out; may be given several times (the variable holds one).",
        type=WholeText(),
        multiple=True,
    ),
    option("Sampling", "--stop-token-ids", "Ids that end the answer.", type=TokenIds()),
    option("Sampling", "--logit-bias", "Added to the logits of ids: 2=-100,651=1.5.", type=Biases(), metavar="IDS"),
    option("Sampling", "--allowed-token-ids", "The only ids that may be chosen.", type=TokenIds()),
    option(
        "Sampling",
        "--bad-words",
        "Text that the answer never holds; may be given several times (the variable holds one).",
        type=WholeText(),
        multiple=True,
    ),
    option(
        "Sampling",
        "--json-schema",
        "A JSON schema, or @FILE with one: the answer is JSON that it admits.",
        type=TextOrFile(),
    ),
    option("Sampling", "--json-object", "The answer is a JSON object.", is_flag=True),
    option("Sampling", "--regex", "The whole answer matches this regex."),
    option(
        "Sampling",
        "--choice",
        "The answer is one of these; given several times (the variable holds one).",
        type=WholeText(),
        multiple=True,
    ),
    option("Sampling", "--grammar", "A Lark or GBNF grammar of the answer, or @FILE with one.", type=TextOrFile()),
    option("Sampling", "--ignore-eos", "Go on past the model's own stop ids.", is_flag=True),
    option("Sampling", "--logprobs", "With --json: each token's N best logprobs.", type=int, metavar="N"),
    option("Sampling", "--prompt-logprobs", "With --json: the same for the prompt.", type=int, metavar="N"),
)
SAMPLING_NAMES = (
    *("max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "seed", "n", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "logprobs"),
    *("prompt_logprobs", "logit_bias", "allowed_token_ids", "bad_words", "json_schema", "json_object", "regex"),
    *("choice", "grammar"),
)

dtype_option = option(
    "Engine",
    "--dtype",
    "auto, float32 or bfloat16; left out, auto: the checkpoint's own, bfloat16 for GGUF and for float16.",
)
backend_options = _together(
    option("Engine", "--device", "cpu, cuda or cuda:N; left out, cpu."),
    option("Engine", "--kernels", "auto or reference; left out, auto."),
    option(
        "Engine",
        "--kv-layout",
        "auto, both or v: what layers with K equal to V keep, both or V alone, from which keys are rebuilt; left out, "
        "auto: v.",
    ),
    option("Engine", "--threads", "CPU threads; left out, as many as this process may use.", type=int),
)
batch_options = _together(
    option(
        "Engine",
        "--max-model-len",
        "Longest prompt and answer together, in tokens; left out, the model's context, lowered to what the K/V pool "
        "holds.",
        type=int,
    ),
    option(
        "Engine",
        "--max-num-batched-tokens",
        "Tokens of one step; left out, 512 on CPU and 2048 on a GPU.",
        type=int,
    ),
    option("Engine", "--max-num-seqs", "Answers made at once; left out, 16.", type=int),
    option("Engine", "--block-size", "Tokens of one K/V block; left out, 16.", type=int),
    option(
        "Engine",
        "--kv-cache-memory-bytes",
        "Size of the K/V pool, such as 2GiB; left out, enough for --max-num-seqs answers of --max-model-len, at most "
        "a quarter of free memory.",
        type=Bytes(),
    ),
    option(
        "Engine",
        "--no-prefix-caching",
        "Compute every prompt anew instead of finding its beginning in the cache.",
        is_flag=True,
    ),
    option("Engine", "--cache-salt", "Share cached prompts only with requests of the same salt."),
)
chat_options = _together(
    option("Chat", "--system", "The system message."),
    option("Chat", "--think/--no-think", "Let the model think before it answers (Gemma 4).", default=None),
)
ENGINE_NAMES = (
    *("dtype", "device", "kernels", "threads", "max_model_len", "max_num_batched_tokens", "max_num_seqs"),
    *("block_size", "kv_cache_memory_bytes", "kv_layout", "allow_unknown_config_keys"),
)

debug_option = option(
    "Output",
    "--debug",
    "Show the traceback of an error.",
    is_flag=True,
    expose_value=False,
    callback=_remember_debug,
)
output_options = _together(
    option("Output", "--json", "Print one JSON object and nothing else on stdout.", is_flag=True),
    debug_option,
)


def engine_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of EngineConfig that the user set."""
    options = given(values, ENGINE_NAMES)
    return {**options, "prefix_caching": False} if values.get("no_prefix_caching") else options


def given(values: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Return those of the named values that the user set, so that all others keep the defaults of what takes them."""
    chosen = {name: values[name] for name in names if name in values}
    # By identity: 0 equals False and is a choice.
    return {name: value for name, value in chosen.items() if value is not None and value is not False and value != ()}
