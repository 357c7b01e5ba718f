"""Mode serve: offers the newest weights of a run at an OpenAI-compatible address."""
