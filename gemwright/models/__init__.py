"""The models, over ops: one decoder for every Gemma."""
