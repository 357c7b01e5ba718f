"""What a step should give, by plain loops over single rows: no padding, no code of ours.

Formulas are written from the papers and the authors' programs. A test sees that no module of ours
is loaded with them.
"""
