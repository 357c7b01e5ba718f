"""The table that `experience_buffer.path` fills, for programs that read it with SQLAlchemy.

    engine = create_engine("sqlite:///countdown_buffer.db")
    session = sessionmaker(bind=engine)()
    for row in session.query(ExperienceModel).order_by(ExperienceModel.id).limit(4):
        experience = ExperienceModel.to_experience(row)
        print(experience.prompt_text, experience.response_text, experience.reward)

Contents are protobuf (`trinity.api.v1.Experience`): reading them executes no code.
"""

from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from trinity.api.v1 import experience_pb2 as pb
from trinity.data.codec import experience_from_proto
from trinity.types import Experience

_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


class SinkBase(DeclarativeBase):
    """Base of the tables in the database at `experience_buffer.path`."""


class ExperienceModel(SinkBase):
    """One experience as its run committed it, before operators and advantages."""

    __tablename__ = "experience"
    __table_args__ = (sa.UniqueConstraint("experiment_id", "stage", "number"),)

    id: Mapped[int] = mapped_column(_NUMBER, primary_key=True)
    """In the order of the commits of a stage."""
    experiment_id: Mapped[str] = mapped_column(sa.String(36))
    stage: Mapped[str] = mapped_column(sa.Text)
    number: Mapped[int] = mapped_column(sa.BigInteger)
    """Place in the order of all commits of the buffer; it grows."""
    experience_id: Mapped[str] = mapped_column(sa.String(36))
    explore_step: Mapped[int] = mapped_column(sa.BigInteger)
    taskset: Mapped[str] = mapped_column(sa.Text)
    task_index: Mapped[int] = mapped_column(sa.BigInteger)
    run: Mapped[int] = mapped_column(sa.Integer)
    step: Mapped[int] = mapped_column(sa.Integer)
    model_version: Mapped[int | None] = mapped_column(sa.BigInteger)
    reward: Mapped[float | None] = mapped_column(sa.Float)
    prompt: Mapped[str] = mapped_column(sa.Text)
    response: Mapped[str] = mapped_column(sa.Text)
    metrics: Mapped[Mapping[str, float]] = mapped_column(sa.JSON)
    experience_bytes: Mapped[bytes] = mapped_column(sa.LargeBinary)

    def to_experience(self) -> Experience:
        """Returns the experience with tokens, masks and log-probabilities."""
        return experience_from_proto(pb.Experience.FromString(self.experience_bytes))


class SinkPosition(SinkBase):
    """The place up to which a stage is written; moved in the transaction of its rows."""

    __tablename__ = "experience_position"

    experiment_id: Mapped[str] = mapped_column(sa.String(36), primary_key=True)
    stage: Mapped[str] = mapped_column(sa.String(255), primary_key=True)
    number: Mapped[int] = mapped_column(sa.BigInteger)
