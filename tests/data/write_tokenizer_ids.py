"""Write tokenizer_gemma3_270m.json: the reference's ids of the hard texts, so that tests compare without it.

Run from the root of the repository, with transformers installed: `python -m tests.data.write_tokenizer_ids`.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import transformers

from tests.tokenizer_cases import HARD_TEXTS, write_real_header

OUTPUT = Path(__file__).with_name("tokenizer_gemma3_270m.json")


def main() -> None:
    """Encode every hard text with the reference tokenizer of the default model's GGUF file."""
    with TemporaryDirectory() as folder:
        write_real_header(Path(folder) / "head.gguf")
        reference = transformers.GemmaTokenizer.from_pretrained(folder, gguf_file="head.gguf")
    cases = [{"text": text, "ids": reference.encode(text, add_special_tokens=False)} for text in HARD_TEXTS]
    lines = ",\n".join(json.dumps(case) for case in cases)
    source = json.dumps(f"transformers {transformers.__version__}, GemmaTokenizer, Gemma 3 270M GGUF")
    OUTPUT.write_text(f'{{"source": {source}, "cases": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
