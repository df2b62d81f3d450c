"""One file an engine: the rules by which it sizes its memory."""
