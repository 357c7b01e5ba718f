"""The learner: from a batch to changed weights."""
