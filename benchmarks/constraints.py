"""Time constraints on the vocabulary of a real model: building it once, compiling each, and the mask of every token.

The tokens are those of a text that the constraint admits, as the model's own tokenizer cuts it.

    python benchmarks/constraints.py --out benchmarks/results/constraints.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from decode import describe_machine, describe_versions

from gemwright.loading.checkpoint import open_checkpoint
from gemwright.loading.default_model import cache_folder
from gemwright.loading.resolve import resolve_model
from gemwright.text.constraint import (
    Constraint,
    choice_constraint,
    grammar_constraint,
    object_constraint,
    regex_constraint,
    schema_constraint,
)
from gemwright.text.grammar import ConstraintCompiler
from gemwright.text.tokenizer import load_tokenizer

PROSE = (
    'The river rose slowly, "as it does in March", and by dawn the fields < 3 m above it were under water. '
    "def flood(level): return [level * 2, {'at': 'dawn'}]\n"
)
ORDER = {
    "customer": {"name": "Ada Lovelace", "email": "ada@example.com", "age": 36},
    "items": [{"sku": f"A-{number}", "count": number, "price": 9.5 * number, "note": PROSE} for number in range(1, 5)],
    "paid": True,
    "comment": PROSE * 2,
}
ITEM = {
    "type": "object",
    "properties": {
        "sku": {"type": "string", "pattern": "^[A-Z]-[0-9]{1,4}$"},
        "count": {"type": "integer", "minimum": 1},
        "price": {"type": "number", "minimum": 0},
        "note": {"type": "string"},
    },
    "required": ["sku", "count", "price"],
}
SCHEMA = {
    "type": "object",
    "properties": {
        "customer": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "email": {"type": "string"}, "age": {"type": "integer"}},
            "required": ["name"],
        },
        "items": {"type": "array", "items": ITEM},
        "paid": {"type": "boolean"},
        "comment": {"type": ["string", "null"]},
    },
    "required": ["customer", "items", "paid"],
}
JSON_GBNF = r"""
root ::= object
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}"
array ::= "[" ws (value ("," ws value)*)? "]"
string ::= "\"" ([^"\\\x00-\x1F] | "\\" ["\\/bfnrt])* "\""
number ::= "-"? [0-9]+ ("." [0-9]+)?
ws ::= [ \n]*
"""
CASES: dict[str, tuple[Constraint, str]] = {
    "json_schema": (schema_constraint(SCHEMA), json.dumps(ORDER)),
    "json_object": (object_constraint(), json.dumps(ORDER, indent=2)),
    "regex": (regex_constraint(r"([A-Z][a-z]+ \d{1,3}, )*end"), "Paris 12, Oslo 7, Rome 100, " * 10 + "end"),
    "choice of 2000": (choice_constraint([f"category number {n}" for n in range(2000)]), "category number 1234"),
    "grammar (GBNF of JSON)": (grammar_constraint(JSON_GBNF), json.dumps(ORDER)),
}


def measure(compiler: ConstraintCompiler, constraint: Constraint, text: str) -> dict[str, Any]:
    """Return compile time and the times of each mask along a text, as boolean arrays ready to be applied."""
    started = time.perf_counter()
    compiler.check(constraint)
    compiled = time.perf_counter()
    matcher = compiler.start(constraint)
    result: dict[str, Any] = {
        "compile_ms": (compiled - started) * 1e3,
        "start_ms": (time.perf_counter() - compiled) * 1e3,
    }
    masks, accepts = [], []
    for token in compiler.tokenizer.encode(text, parse_special=False):
        begin = time.perf_counter()
        allowed = matcher.allowed()
        masked = time.perf_counter()
        if not allowed[token]:
            raise AssertionError(f"{token} is not admitted in {text[:80]!r}")
        matcher.accept(token)
        masks.append((masked - begin) * 1e3)
        accepts.append((time.perf_counter() - masked) * 1e3)
    return {
        **result,
        "num_tokens": len(masks),
        "mask_mean_ms": statistics.mean(masks),
        "mask_median_ms": statistics.median(masks),
        "mask_max_ms": max(masks),
        "accept_mean_ms": statistics.mean(accepts),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="hub id, folder or .gguf; left out, the default model")
    parser.add_argument("--out", type=Path, help="where to write the JSON; left out, stdout")
    arguments = parser.parse_args()
    checkpoint = open_checkpoint(resolve_model(arguments.model))
    tokenizer = load_tokenizer(
        checkpoint.folder, gguf_metadata=checkpoint.gguf_metadata, cache_dir=cache_folder() / "tokenizers"
    )
    if tokenizer is None:
        raise SystemExit("this checkpoint has no tokenizer")
    compiler = ConstraintCompiler(tokenizer, checkpoint.spec.vocab_size, tokenizer.eos_token_ids)
    started = time.perf_counter()
    compiler.check(choice_constraint(["a"]))
    found: dict[str, Any] = {
        "machine": describe_machine(),
        "versions": {**describe_versions(), "llguidance": version("llguidance")},
        "vocab_size": checkpoint.spec.vocab_size,
        "build_once_s": time.perf_counter() - started,
        "constraints": {name: measure(compiler, *case) for name, case in CASES.items()},
    }
    text = json.dumps(found, indent=2)
    if arguments.out is None:
        print(text)
    else:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
