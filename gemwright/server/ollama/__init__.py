"""The routes that Ollama's clients know."""
