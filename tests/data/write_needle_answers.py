"""Writes needle_answers.json: what transformers answers to the needle prompts, float32, eager, on the default model.

    .venv/bin/python tests/data/write_needle_answers.py [OUTPUT]

Takes several minutes and about 12 GB of memory. tests/parity/test_needles.py reads the result; its slow test runs this
again and compares.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from gemwright.loading.checkpoint import open_checkpoint  # noqa: E402
from gemwright.loading.default_model import default_model_path  # noqa: E402
from gemwright.text.tokenizer import load_tokenizer  # noqa: E402
from tests.needles import needle_ids  # noqa: E402

LENGTHS = (8_000, 12_000)
NUM_TOKENS = 8
NUM_BEST = 512
STRIDE = 256


def main(output: Path) -> None:
    """Compute and write the answers."""
    path = default_model_path()
    checkpoint = open_checkpoint(path)
    tokenizer = load_tokenizer(checkpoint.folder, gguf_metadata=checkpoint.gguf_metadata, cache_dir=None)
    assert tokenizer is not None
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    answers = []
    for length in LENGTHS:
        ids = needle_ids(lambda text: tokenizer.encode(text, add_bos=True), length)
        with torch.inference_mode():
            result = model.generate(
                torch.tensor([ids]),
                attention_mask=torch.ones(1, length, dtype=torch.int64),
                max_new_tokens=NUM_TOKENS,
                do_sample=False,
                output_logits=True,
                return_dict_in_generate=True,
                pad_token_id=0,
            )
        row = result.logits[0][0].float().numpy()
        chosen = np.union1d(np.argsort(-row, kind="stable")[:NUM_BEST], np.arange(0, len(row), STRIDE))
        answers.append(
            {
                "length": length,
                "token_ids": result.sequences[0, length:].tolist(),
                "text": tokenizer.decode(result.sequences[0, length:].tolist()),
                "spread": float(row.max() - row.min()),
                "logit_ids": chosen.tolist(),
                "logits": [float(value) for value in row[chosen]],
            }
        )
    document = {"transformers": transformers.__version__, "model": path.name, "answers": answers}
    output.write_text(json.dumps(document) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("needle_answers.json"))
