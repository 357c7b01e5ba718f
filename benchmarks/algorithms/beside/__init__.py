"""The same training by others: held-out accuracy over steps and seconds, beside TRL and verl."""
