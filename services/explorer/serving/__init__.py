"""Mode serve: the newest weights of a run behind an OpenAI-compatible address."""
