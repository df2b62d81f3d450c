"""How people reach an engine over HTTP: OpenAI's, Anthropic's and Ollama's routes, a page, and what operators need."""
