"""The OpenAI-compatible address of the model, for workflows that bring their own client."""
