"""Check files for content that must not be committed: whitespace errors, large files, private keys, API tokens.

Checks the given files, or all files that git tracks.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
MAX_BYTES = 1_000_000
# The built-in model's weights and tokenizer are part of the product (docs/spark.md says how they are made).
LARGE = ("catalog/builtin/",)
SECRETS = {
    "a private key": re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/=]{16}"),
    "an API token": re.compile(rb"\bcf(?:ut|at|k)_(?!(.)\1{10})[A-Za-z0-9]{46}\b"),
    "a cloud access key": re.compile(rb"\bAKIA(?!IOSFODNN7EXAMPLE)[0-9A-Z]{16}\b"),
    "a hub token": re.compile(rb"\bhf_[A-Za-z]{34}\b"),
}


def problems_of(name: str, content: bytes) -> Iterator[str]:
    """Return one line for each problem of a file. `name` is relative to the project."""
    if len(content) > MAX_BYTES and not name.startswith(LARGE):
        yield f"{name}: {len(content)} bytes, more than {MAX_BYTES}"
    for what, pattern in SECRETS.items():
        match = pattern.search(content)
        if match:
            yield f"{name}:{content[: match.start()].count(10) + 1}: looks like {what}"
    if b"\0" in content[:8192] or name.startswith(LARGE):
        return
    for number, line in enumerate(content.split(b"\n"), 1):
        if line != line.rstrip():
            yield f"{name}:{number}: whitespace at the end of the line"
    if content and (not content.endswith(b"\n") or content.endswith(b"\n\n")):
        yield f"{name}: does not end with exactly one line end"


def tracked_files() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    return [name for name in listed.stdout.decode().split("\0") if name]


def check(names: Iterable[str]) -> list[str]:
    found = []
    for name in names:
        file = ROOT / name
        if file.is_file() and not file.is_symlink():
            found += problems_of(name, file.read_bytes())
    return found


if __name__ == "__main__":
    problems = check(sys.argv[1:] or tracked_files())
    print("\n".join(problems) or "files are clean")
    sys.exit(bool(problems))
