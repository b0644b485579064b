"""Run the migrations on the connection that `storage.migrate` passes in; it holds the lock and the transaction."""

from __future__ import annotations

from alembic import context

from storage.database import metadata

# The caller's transaction is already open. `target_metadata` gives constraints the same names as `metadata` does;
# `render_as_batch` lets SQLite change a column by copying its table.
context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
    render_as_batch=True,
)
context.run_migrations()
