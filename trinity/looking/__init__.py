"""Looking into what a run has stored: which samples, shown how, written where."""
