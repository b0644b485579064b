"""Parser for DATABASE_URL.

Imports no database driver, so that startup checks stay fast.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

Dialect = Literal["sqlite", "postgresql"]


@dataclass(frozen=True)
class DatabaseUrl:
    """A parsed database URL. `path` is set for SQLite, `dsn` (a `postgresql://` URL) for Postgres."""

    dialect: Dialect
    path: Path | None = None
    dsn: str = ""

    @property
    def for_sqlalchemy(self) -> str:
        if self.path is not None:
            return f"sqlite+aiosqlite:///{self.path}"
        return "postgresql+asyncpg" + self.dsn.removeprefix("postgresql")


def parse_database_url(text: str) -> DatabaseUrl:
    """Parse `sqlite:///absolute/path` or `postgresql://…`. Raises ValueError with a one-line message without the
    password."""
    scheme, separator, rest = text.partition("://")
    if separator and scheme == "sqlite":
        path = unquote(rest)
        if not path.startswith("/") or path.strip("/") == "":
            raise ValueError("expected sqlite:// followed by the absolute path of a file")
        return DatabaseUrl("sqlite", path=Path(os.path.normpath("/" + path.lstrip("/"))))
    if separator and scheme in ("postgresql", "postgres"):
        return DatabaseUrl("postgresql", dsn=f"postgresql://{rest}")
    raise ValueError("expected sqlite:///absolute/path or postgresql://…")
