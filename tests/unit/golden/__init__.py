"""What users and programs depend on, recorded and compared in each run.

`adapters` is the only module here that imports the code under test; `corpus` records and compares;
each other module gives the sections of one kind. `recorded.json` has a line a case: the result if
it is short, else its digest. To read a change, and to record again after one that is meant:

    python -m tests.unit.golden --diff yaml     # against where this branch left main
    python -m tests.unit.golden                 # all sections
    python -m tests.unit.golden yaml database   # these alone
    python -m tests.unit.golden --new-recipes   # other mutations than those stored
"""
