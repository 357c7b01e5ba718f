"""Snippets as Trinity-RFT's guides print them."""

READ_EXPERIENCES = """
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool
from trinity.common.schema.sql_schema import ExperienceModel

engine = create_engine("sqlite:///sums_buffer.db")
session = sessionmaker(bind=engine)
sess = session()

MAX_EXPERIENCES = 4
experiences = (
    sess.query(ExperienceModel)
    .limit(MAX_EXPERIENCES)
    .all()
)

exp_list = []
for exp in experiences:
    exp_list.append(ExperienceModel.to_experience(exp))

for exp in exp_list:
    print(f"{exp.prompt_text=}", f"{exp.response_text=}")
"""
"""Prints experiences of the SQLite file `sums_buffer.db` in the current folder."""
