"""The two dtypes an engine computes and caches in, by name and size."""

from __future__ import annotations

from typing import Literal

ComputeDtype = Literal["float32", "bfloat16"]

DTYPE_BYTES: dict[ComputeDtype, int] = {"float32": 4, "bfloat16": 2}
