"""verl's training engine, adapted: the only files that import it besides the learner's."""
