"""What a model will cost: memory line by line, time, and what fits. Knows specs and sizes, never the engine or torch."""
