"""Tables of experiences in a database, by Trinity-RFT's name."""

from trinity.data.sql_schema import *  # noqa: F403
