"""What holds a run: gathered as a snapshot, judged by rules over nothing but that."""
