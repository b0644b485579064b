"""Region rules of accounts and API tokens, retention of accounts, and the chain of audit entries.

The chain's columns are nullable, for the version before writes entries without them: whoever writes the next entry
chains those first. From then on the database itself lets nobody change or take away an entry.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_REFUSAL = "audit entries are append-only"
_SQLITE = (
    f"""CREATE TRIGGER audit_entries_stay BEFORE UPDATE ON audit_entries WHEN OLD.sequence IS NOT NULL
    BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END""",
    f"""CREATE TRIGGER audit_entries_remain BEFORE DELETE ON audit_entries
    BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END""",
)
_POSTGRES = (
    f"""CREATE FUNCTION audit_entries_refuse() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION '{_REFUSAL}' USING ERRCODE = 'integrity_constraint_violation'; END $$""",
    """CREATE TRIGGER audit_entries_stay BEFORE UPDATE ON audit_entries FOR EACH ROW
    WHEN (OLD.sequence IS NOT NULL) EXECUTE FUNCTION audit_entries_refuse()""",
    """CREATE TRIGGER audit_entries_remain BEFORE DELETE ON audit_entries FOR EACH ROW
    EXECUTE FUNCTION audit_entries_refuse()""",
    """CREATE TRIGGER audit_entries_all_remain BEFORE TRUNCATE ON audit_entries FOR EACH STATEMENT
    EXECUTE FUNCTION audit_entries_refuse()""",
)


def upgrade() -> None:
    op.add_column("accounts", sa.Column("region", sa.Text(), nullable=True))
    op.add_column("accounts", sa.Column("retention", sa.String(16), nullable=False, server_default="standard"))
    op.add_column("api_tokens", sa.Column("region", sa.Text(), nullable=True))
    op.add_column("audit_entries", sa.Column("detail", sa.Text(), nullable=False, server_default=""))
    op.add_column("audit_entries", sa.Column("sequence", sa.BigInteger(), nullable=True))
    op.add_column("audit_entries", sa.Column("digest", sa.LargeBinary(32), nullable=True))
    op.create_index(op.f("ix_audit_entries_sequence"), "audit_entries", ["sequence"], unique=True)
    head = op.create_table(
        "audit_head",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_head")),
    )
    op.bulk_insert(head, [{"id": 1, "sequence": 0, "digest": bytes(32)}])
    for statement in _SQLITE if op.get_bind().dialect.name == "sqlite" else _POSTGRES:
        op.execute(statement)


def downgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        for trigger in ("audit_entries_stay", "audit_entries_remain"):
            op.execute(f"DROP TRIGGER {trigger}")
    else:
        op.execute("DROP FUNCTION audit_entries_refuse() CASCADE")
    op.drop_table("audit_head")
    op.drop_index(op.f("ix_audit_entries_sequence"), "audit_entries")
    for column in ("digest", "sequence", "detail"):
        op.drop_column("audit_entries", column)
    op.drop_column("api_tokens", "region")
    for column in ("retention", "region"):
        op.drop_column("accounts", column)
