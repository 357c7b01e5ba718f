"""What users and programs depend on, recorded and compared in each run.

`adapters` is the only module here that imports the code under test; `corpus` records and compares;
each other module gives the sections of one kind. To record again after a change that is meant:

    python -m tests.unit.golden                 # all sections, then read `git diff`
    python -m tests.unit.golden yaml database   # these alone
    python -m tests.unit.golden --new-recipes   # other mutations than those stored
"""
