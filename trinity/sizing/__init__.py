"""How large a run is: its model, its memory, its place on machines, its steps and tokens."""
