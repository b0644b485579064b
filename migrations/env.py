"""Runs the migrations on the connection that `storage.migrate` hands in; it holds the lock and the transaction."""

from __future__ import annotations

from alembic import context

# Our own transaction is already open on both databases; `render_as_batch` lets SQLite change a column by a table copy.
context.configure(connection=context.config.attributes["connection"], transactional_ddl=True, render_as_batch=True)
context.run_migrations()
