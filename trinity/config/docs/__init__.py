"""Documentation made from the schema: explanations, JSON Schema, resolved files, templates."""
