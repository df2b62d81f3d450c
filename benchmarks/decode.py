"""Time one model through the public API: seconds to the first token, and tokens a second after it.

Times are taken from outside, around `LLM.generate`: a request for one token gives the time to the first token, one for
many tokens minus that gives the decoding rate. Every single time is kept in the result beside the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gemwright import LLM, SamplingParams

SENTENCE = "The river rose slowly through the night, and in the morning the lower fields were under water. "
PROMPTS = {"short": "The capital of France is", "long": SENTENCE * 48}


def describe_machine() -> dict[str, Any]:
    """Return what the numbers depend on: processor, cores this process may use, memory, system."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "num_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.machine()}",
    }


def describe_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that do the work, as far as they are installed."""
    versions = {"python": platform.python_version()}
    for name in ("gemwright", "numpy", "torch"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def seconds_for(llm: LLM, prompt: str, max_tokens: int) -> tuple[float, int, int]:
    """Return the seconds of one greedy request, its prompt's tokens and the tokens it made."""
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    start = time.perf_counter()
    (result,) = llm.generate([prompt], params)
    return time.perf_counter() - start, len(result.prompt_token_ids), len(result.token_ids)


def time_prompt(llm: LLM, prompt: str, max_tokens: int, num_runs: int) -> dict[str, Any]:
    """Return medians and single times for one prompt, after one warm-up request that is not counted."""
    seconds_for(llm, prompt, 2)
    first = [seconds_for(llm, prompt, 1)[0] for _ in range(num_runs)]
    whole = [seconds_for(llm, prompt, max_tokens) for _ in range(num_runs)]
    ttft_s = statistics.median(first)
    decode_s = statistics.median(seconds for seconds, _, _ in whole) - ttft_s
    _, num_prompt_tokens, num_tokens = whole[0]
    return {
        "num_prompt_tokens": num_prompt_tokens,
        "num_tokens": num_tokens,
        "ttft_s": ttft_s,
        "prefill_tokens_per_s": num_prompt_tokens / ttft_s,
        "decode_tokens_per_s": (num_tokens - 1) / decode_s,
        "first_token_seconds": first,
        "whole_request_seconds": [seconds for seconds, _, _ in whole],
    }


def main() -> None:
    """Load, time, print the JSON and write it to --output where one is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="a hub id, a folder or a .gguf file; left out: the default model")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens made by a timed request (at least 2)")
    parser.add_argument("--runs", type=int, default=3, help="timed requests of each kind")
    parser.add_argument("--output", type=Path, help="write the JSON here as well")
    arguments = parser.parse_args()
    if arguments.max_tokens < 2 or arguments.runs < 1:
        parser.error("--max-tokens must be at least 2 and --runs at least 1")

    start = time.perf_counter()
    # Without the prefix cache, which would answer for a prompt that was timed before.
    llm = LLM(arguments.model, dtype=arguments.dtype, prefix_caching=False)
    load_s = time.perf_counter() - start
    report = {
        "command": " ".join(["python", *sys.argv]),
        "model": arguments.model or "default",
        "dtype": llm.engine.dtype,
        "machine": describe_machine(),
        "versions": describe_versions(),
        "load_s": load_s,
        "prompts": {
            name: time_prompt(llm, prompt, arguments.max_tokens, arguments.runs) for name, prompt in PROMPTS.items()
        },
    }
    text = json.dumps(report, indent=2)
    print(text)
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
