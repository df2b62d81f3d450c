"""How the tests read documents: a command that they overlook would be one that nobody checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents import Block, Command, blocks, is_pattern, simple_commands, spans

DOCUMENT = """\
# Title

```bash
# a comment
gemwright run "a | b" \\
  --max-tokens 4
cat > in.jsonl <<'END'
{"prompt": "# not a comment"}
gemwright not a command
END
gemwright batch in.jsonl out.jsonl
```

- In a list:

  ```console
  $ gemwright list
  a model
  $ FOO=1 gemwright show x > out 2> err && cat out | head -n 3  # exit code 5
  ```

```text
gemwright in a text
```

Inline `gemwright verify --json`, ``two ` ticks`` and

| ollama | Gemwright | Note |
| --- | --- | --- |
| `ollama run a` | `gemwright run a "b \\| c"` | `--none-of-ours` |
| `ollama ls` | `gemwright list`, `--json` | |

| Other | Table |
| --- | --- |
| `gemwright run --seed 1` | |
"""


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(DOCUMENT)
    return path


def test_blocks_and_their_commands(document: Path) -> None:
    found = blocks(document)
    assert [(block.where, block.language) for block in found] == [
        ("page.md, line 3", "bash"),
        ("page.md, line 16", "console"),
        ("page.md, line 22", "text"),
    ]
    assert [command.text.partition("\n")[0] for block in found for command in block.commands()] == [
        'gemwright run "a | b" \\',
        "cat > in.jsonl <<'END'",
        "gemwright batch in.jsonl out.jsonl",
        "gemwright list",
        "FOO=1 gemwright show x > out 2> err && cat out | head -n 3  # exit code 5",
    ]


def test_words_of_programs(document: Path) -> None:
    commands = [command for block in blocks(document) for command in block.commands()]
    assert [command.programs() for command in commands] == [
        [["gemwright", "run", "a | b", "--max-tokens", "4"]],
        [["cat"]],
        [["gemwright", "batch", "in.jsonl", "out.jsonl"]],
        [["gemwright", "list"]],
        [["gemwright", "show", "x"], ["cat", "out"], ["head", "-n", "3"]],
    ]
    assert [command.expected_code for command in commands] == [0, 0, 0, 0, 5]


def test_inline_code_that_is_ours(document: Path) -> None:
    assert [span.text for span in spans(document)] == [
        "gemwright verify --json",
        'gemwright run a "b | c"',
        "gemwright list",
        "--json",
        "gemwright run --seed 1",
    ]
    assert spans(document)[0].where == "page.md, line 26"


def test_commands_side_by_side(document: Path) -> None:
    found = [span.text for span in spans(document) if span.is_side_by_side]
    assert found == ['gemwright run a "b | c"', "gemwright list", "--json"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a b; c d & e", [["a", "b"], ["c", "d"], ["e"]]),
        ("A=1 B='x y' c", [["c"]]),
        ("a <<< 'text' --b", [["a", "--b"]]),
        ("a --b > c 2>&1 | d", [["a", "--b"], ["d"]]),
        ("a --b=c 'd;e'", [["a", "--b=c", "d;e"]]),
    ],
)
def test_simple_commands(text: str, words: list[list[str]]) -> None:
    assert simple_commands(text) == words


def test_a_command_that_does_not_end_is_no_command() -> None:
    with pytest.raises(AssertionError, match="does not end"):
        Block("x", 1, "bash", "gemwright run \\\n").commands()


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("gemwright run MODEL PROMPT", True),
        ("gemwright pull|list", True),
        ("gemwright run ... --n N", True),
        ("gemwright batch IN.jsonl OUT.jsonl", True),
        ('gemwright run google/gemma-4-E2B-it "The capital"', False),
        ("gemwright run [MODEL]", True),
        ("gemwright run ./<file>", True),
        ("gemwright verify --json", False),
        ("gemwright parse --family gemma4 < cases.jsonl | head", False),
        ("gemwright run 'Three as JSON: [1, 2, ...]' --json-schema '{\"A\": 1}'", False),
        ("gemwright chat ggml-org/gemma-3-1b-it-GGUF:Q4_K_M", False),
        ("gemwright pull google/gemma-3-1b-it@REVISION", False),
        ("gemwright run ./gemma-3-1b-it-Q8_0.gguf hello", False),
    ],
)
def test_what_is_a_pattern(text: str, is_one: bool) -> None:
    assert is_pattern(text) is is_one


def test_other_exit_codes_stand_behind_the_command() -> None:
    assert Command("x", 1, "gemwright run a  # exit code 3").expected_code == 3
    assert Command("x", 1, "gemwright run 'a # exit code 3' b").expected_code == 0
