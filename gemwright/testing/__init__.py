"""Tiny random Gemmas and tokenizers: for this project's tests and for yours, with no download and no weights.

from gemwright.testing import write_tiny_checkpoint
folder = write_tiny_checkpoint("gemma4-moe", tmp_path)
"""

from gemwright.testing.checkpoints import write_tiny_checkpoint
from gemwright.testing.tiny_configs import TINY_CONFIGS

__all__ = ["TINY_CONFIGS", "write_tiny_checkpoint"]
