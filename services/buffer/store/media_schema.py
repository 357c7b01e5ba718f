"""The tables of images, which join those of `schema`."""

import sqlalchemy as sa

from services.buffer.store.schema import NOW, TIME, metadata

media = sa.Table(  # A chunk of an image; the chunk with number 0 stands for the whole
    "media",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("sha256", sa.LargeBinary, primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("size", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("media_type", sa.Text, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("stored_at", TIME, nullable=False, server_default=NOW),
)

media_use = sa.Table(  # A segment or taskset that refers to an image
    "media_use",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("sha256", sa.LargeBinary, primary_key=True),
    sa.Column("used_by", sa.Text, primary_key=True),
    sa.Index(None, "used_by"),
)
