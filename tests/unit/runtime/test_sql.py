"""The text and the parameters that statements of SQLAlchemy get for the driver."""

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from trinity.runtime.sql import bind

T = sa.table("t", sa.column("n", sa.BigInteger), sa.column("name", sa.Text), sa.column("j", JSONB))


def test_statements_of_one_structure_share_a_text() -> None:
    first = bind(sa.select(T.c.n).where(T.c.name == "a").limit(1))
    second = bind(sa.select(T.c.n).where(T.c.name == "b").limit(2))
    assert first[0] is second[0]
    assert sorted(map(str, first[1].values())) == ["1", "a"]
    assert sorted(map(str, second[1].values())) == ["2", "b"]


def test_a_constant_takes_other_parameters_each_time_and_keeps_its_literals() -> None:
    constant = sa.select(T.c.n).where(T.c.name == "a", T.c.n > sa.bindparam("least"))
    texts = {bind(constant, {"least": 1})[0], bind(constant, {"least": 2})[0]}
    assert len(texts) == 1
    assert sorted(map(str, bind(constant, {"least": 3})[1].values())) == ["3", "a"]


def test_values_take_the_form_that_their_type_asks_for() -> None:
    _, values = bind(sa.insert(T).values(j={"a": 1}))
    assert [type(value).__name__ for value in values.values()] == ["Jsonb"]


def test_a_list_whose_length_would_change_the_text_is_refused() -> None:
    with pytest.raises(AssertionError, match="any_"):
        bind(sa.select(T.c.n).where(T.c.n.in_([1, 2])))


def test_a_parameter_may_not_replace_a_literal() -> None:
    statement = sa.select(T.c.n).where(T.c.name == "a")
    [name] = bind(statement)[1]
    with pytest.raises(AssertionError, match="literal"):
        bind(sa.select(T.c.n).where(T.c.name == "a"), {name: "b"})
