"""The database's roles: each service that stores rows owns one schema with its own name."""

import psycopg
from psycopg import sql

DATABASE = "trinity"
SCHEMA_OWNERS = ("buffer", "synchronizer")
_ALGORITHM = b"scram-sha-256"
"""Passwords are sent hashed: a failed statement is written to the database's log."""


async def set_up_roles(connection: psycopg.AsyncConnection, passwords: dict[str, str]) -> None:
    """Creates what is missing and sets the passwords; needs a superuser in autocommit mode.

    Postgres cannot change one role twice concurrently: the lock is held as long as the connection.
    """
    await connection.execute("SELECT pg_advisory_lock(hashtext('trinity roles'))")
    for role, password in passwords.items():
        await _ensure_role(connection, role, password)
    exists = await connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE])
    if await exists.fetchone() is None:
        await connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
    await connection.execute("REVOKE CONNECT ON DATABASE postgres FROM PUBLIC")
    await connection.execute("REVOKE CONNECT ON DATABASE template1 FROM PUBLIC")


async def set_up_schemas(connection: psycopg.AsyncConnection) -> None:
    """Gives each role its schema in the connected database, and other roles nothing."""
    await connection.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
    database = sql.Identifier(connection.info.dbname)
    await connection.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(database))
    for role in SCHEMA_OWNERS:
        name = sql.Identifier(role)
        grant = sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(database, name)
        await connection.execute(grant)
        await connection.execute(
            sql.SQL("CREATE SCHEMA IF NOT EXISTS {} AUTHORIZATION {}").format(name, name)
        )


async def _ensure_role(connection: psycopg.AsyncConnection, role: str, password: str) -> None:
    name = sql.Identifier(role)
    verifier = connection.pgconn.encrypt_password(password.encode(), role.encode(), _ALGORITHM)
    exists = await connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role])
    verb = "CREATE" if await exists.fetchone() is None else "ALTER"
    await connection.execute(
        sql.SQL(
            "{} ROLE {} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS "
            "PASSWORD {}"
        ).format(sql.SQL(verb), name, sql.Literal(verifier.decode()))
    )
    await connection.execute(sql.SQL("ALTER ROLE {} SET search_path = {}").format(name, name))
