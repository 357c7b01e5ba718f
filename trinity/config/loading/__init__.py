"""From a YAML file and overrides to a configuration, with the line of each key."""
