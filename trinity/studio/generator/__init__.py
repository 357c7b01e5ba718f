"""The config generator: fields from the schema, entries of plug-ins, the YAML and its check."""
