"""The experiment's configuration, and the plan that services act on: one file a section."""
