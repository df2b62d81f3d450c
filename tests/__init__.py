"""Tests by kind: unit, property, parity (against transformers), end_to_end, contracts (the project's own rules)."""
