"""The OpenAI-compatible address of the model, for workflows that use their own client."""
