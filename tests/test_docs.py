"""The documentation covers all declarations in the code, and everything that it names exists."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main

from cli.main import app
from engine.standalone.settings import read_flags
from gateway.errors import Reason
from local_platform.process_settings import ProcessName, settings_class
from scripts.write_docs import PAGES
from telemetry import metrics
from telemetry.settings import describe

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def settings() -> set[str]:
    return {info.env for process in ProcessName for info in describe(settings_class(process))}


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_up_to_date(name: str):
    page: Callable[[], str] = PAGES[name]
    assert (DOCS / name).read_text() == page(), "run `make docs`"


def test_every_setting_is_documented_and_every_documented_setting_exists():
    documented = set(re.findall(r"^\| `([A-Z_]+)` \|", (DOCS / "settings.md").read_text(), re.MULTILINE))
    assert documented == settings()


def test_every_metric_is_documented_and_every_documented_metric_exists():
    documented = set(re.findall(r"^\| `(hearth_[a-z_]+)` \|", (DOCS / "metrics.md").read_text(), re.MULTILINE))
    assert documented == set(metrics.all_metrics())


def test_every_error_is_documented_and_every_documented_error_exists():
    """A row of docs/errors.md starts with status and code, as in `| 400 | 7000 |`."""
    rows = re.findall(r"^\| *(\d{3}) *\| *(\d{3,5}) *\|", (DOCS / "errors.md").read_text(), re.MULTILINE)
    documented = {(int(status), int(code)) for status, code in rows}
    assert documented == {(reason.value.status, reason.value.code) for reason in Reason}


def test_every_flag_of_the_standalone_server_is_documented_and_every_documented_flag_exists(
    capsys: pytest.CaptureFixture[str],
):
    """A row of the table starts with the flags, as in `| `--host`, `--port` |`."""
    cells = re.findall(r"^\| (`--.*?) \|", (DOCS / "standalone.md").read_text(), re.MULTILINE)
    documented = {flag for cell in cells for flag in re.findall(r"--[a-z-]+", cell)}
    with pytest.raises(SystemExit):
        read_flags(["--help"])
    assert documented == set(re.findall(r"(?<!\S)--[a-z-]+", capsys.readouterr().out)) - {"--help"}


def test_every_named_environment_variable_is_a_setting_or_belongs_to_a_tool():
    known = settings() | {"HEARTH_FIGURES", "HEARTH_TEST_DATA"}
    for file in [*ROOT.glob("*.md"), *DOCS.glob("*.md"), ROOT / "docker-compose.yml"]:
        named = set(re.findall(r"\bHEARTH_[A-Z_]+[A-Z]\b", file.read_text()))
        assert named <= known, f"{file.name} names {sorted(named - known)}"


def test_every_link_target_exists():
    for file in [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)\s]+)", file.read_text()):
            path, _, heading = target.partition("#")
            if "://" in target or target.startswith("mailto:"):
                continue
            page = file.parent / path if path else file
            assert page.exists(), f"{file.relative_to(ROOT)} links to {target}"
            assert not heading or heading in headings(page), f"{file.relative_to(ROOT)} links to {target}"


def test_every_named_file_exists():
    """Applies to files of the packages, named by their path from the root."""
    packages = "|".join(path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("."))
    for file in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]:
        if file == ROOT / "CHANGELOG.md":
            continue  # the changelog names removed files
        named = set(re.findall(rf"`((?:{packages})/[\w./-]+\.[a-z]+|(?:{packages})(?:/[\w-]+)*/)`", file.read_text()))
        missing = {path for path in named if not (ROOT / path).exists()}
        assert not missing, f"{file.name} names {sorted(missing)}"


def headings(page: Path) -> set[str]:
    """Return the headings as link anchors: lowercase, with dashes for spaces, without other punctuation."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_decisions_have_unique_numbers_and_a_status():
    numbers = []
    for file in sorted((DOCS / "decisions").glob("[0-9]*.md")):
        number = file.name[:4]
        title, status = [line for line in file.read_text().splitlines() if line][:2]
        assert title.startswith(f"# {number}: "), file.name
        pattern = r"\d{4}-\d\d-\d\d, (accepted|superseded by \d{4}|accepted; supersedes \d{4})\."
        assert number == "0000" or re.fullmatch(pattern, status), file.name
        numbers.append(number)
    assert len(set(numbers)) == len(numbers)


def test_every_named_make_target_exists():
    verbs = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for file in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]:
        named = set(re.findall(r"`make ([a-z-]+)", file.read_text()))
        assert named <= verbs, f"{file.name} names {sorted(named - verbs)}"


def test_every_named_hearth_command_exists():
    known = hearth_commands()
    for file in [*ROOT.glob("*.md"), *DOCS.glob("*.md")]:
        for noun, verb in re.findall(r"`(?:\.venv/bin/)?hearth ([a-z]+(?:-[a-z]+)*)(?: ([a-z]+))?", file.read_text()):
            assert noun in known, f"{file.name} names `hearth {noun}`"
            assert not verb or not known[noun] or verb in known[noun], f"{file.name} names `hearth {noun} {verb}`"


def test_every_hearth_command_in_examples_exists_with_its_options():
    root: Any = typer.main.get_command(app)
    num_commands = 0
    for file in [*ROOT.glob("*.md"), *DOCS.glob("*.md"), *(ROOT / "examples").rglob("*.md")]:
        for block in re.findall(r"^```(?:sh)?\n(.*?)^```", file.read_text(), re.MULTILINE | re.DOTALL):
            for line in re.findall(r"(?:^|\$\(|\|)(?:\.venv/bin/)?hearth ([^|#)\n]+)", block, re.MULTILINE):
                command: Any = root
                words = line.split()
                while words and words[0] in getattr(command, "commands", {}):
                    command = command.commands[words.pop(0)]
                assert not getattr(command, "commands", {}), f"{file.name}: hearth {line}"
                options = {name for parameter in command.params for name in parameter.opts} | {"--help"}
                named = set(re.findall(r"(?<!\S)--[a-z-]+", line))
                assert named <= options, f"{file.name}: hearth {line}: {sorted(named - options)}"
                num_commands += 1
    assert num_commands > 10


def test_every_page_is_listed_in_the_index():
    listed = set(re.findall(r"\]\(([a-z_]+\.md)\)", (DOCS / "README.md").read_text()))
    assert listed == {page.name for page in DOCS.glob("*.md")} - {"README.md"}


def hearth_commands() -> dict[str, set[str]]:
    """Return the subcommands by command; a command without subcommands has an empty set."""
    root: Any = typer.main.get_command(app)
    return {noun: set(getattr(command, "commands", {})) for noun, command in root.commands.items()}
