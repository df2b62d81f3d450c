"""The routes that Anthropic's clients know."""
