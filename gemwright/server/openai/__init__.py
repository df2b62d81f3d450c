"""OpenAI's routes, with the extensions that vLLM's users know."""
