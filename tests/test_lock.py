"""The lock files contain the dependencies of pyproject.toml in versions that can be installed from a package index."""

import re
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
# lock file and the extras that it covers
LOCKS = {
    "requirements.lock": ("engine", "speech", "images", "tracing", "embedded", "dev"),
    "requirements-clients.lock": ("clients",),
}
UNLOCKED_EXTRAS = {"ocr", "parquet"}  # large, and few users need them
OLDEST_PYTHON = "3.11.0"  # the lower bound of `requires-python`
NOT_LOCKED = {"torch"}  # the build depends on the machine


def lock_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def problem_of(line: str) -> str | None:
    """Return why a line must not be in a lock file, or None."""
    if re.search(r"file://|https?://|@ |^-|[/\\]", line):
        return "a place instead of a version"
    pinned = re.fullmatch(r"([a-z0-9][a-z0-9.-]*)==([^\s;]+)", line)
    if pinned is None:
        return "not NAME==VERSION"
    if Version(pinned[2]).local:
        return "a local version, which only one index has"
    if re.fullmatch(r"torch|triton.*|nvidia-(?!ml-py).*|cuda-.*", pinned[1]):
        return "belongs to one build of torch"
    if pinned[1] != canonicalize_name(pinned[1]):
        return "not the canonical name"
    return None


def direct_dependencies(lock: str | None = None) -> list[Requirement]:
    """Return the dependencies of pyproject.toml: all of them, or those that a lock file must contain."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = list(project["dependencies"]) if lock in (None, "requirements.lock") else []
    extras = project["optional-dependencies"]
    assert set(extras) == {extra for wanted in LOCKS.values() for extra in wanted} | UNLOCKED_EXTRAS
    for extra in extras.keys() - UNLOCKED_EXTRAS if lock is None else LOCKS[lock]:
        texts += extras[extra]
    return [Requirement(text) for text in texts]


@pytest.mark.parametrize("lock", LOCKS)
def test_every_line_pins_one_version(lock: str):
    problems = {line: problem for line in lock_lines((ROOT / lock).read_text()) if (problem := problem_of(line))}
    assert problems == {}


@pytest.mark.parametrize(
    "line",
    [
        "torch @ file:///somewhere/torch.whl",
        "hearth @ file:///somewhere",
        "-e .",
        "./wheels/x.whl",
        "numpy==2.4.6+cpu",
        "numpy>=2",
        "torch==2.13.0",
        "nvidia-cublas==13.1",
        "--index-url https://example.org/simple",
    ],
)
def test_lines_that_work_on_one_machine_only_are_rejected(line: str):
    assert problem_of(line) is not None


@pytest.mark.parametrize("lock", LOCKS)
def test_every_direct_dependency_is_locked_within_its_range(lock: str):
    pins = (line.split(";")[0].split("==") for line in lock_lines((ROOT / lock).read_text()))
    locked = {name: version.strip() for name, version in pins}
    for requirement in direct_dependencies(lock):
        name = canonicalize_name(requirement.name)
        if name in NOT_LOCKED:
            continue
        assert name in locked, f"{name} is required but not locked: run `make lock`"
        assert requirement.specifier.contains(locked[name]), f"{name} {locked[name]} is outside {requirement.specifier}"


@pytest.mark.parametrize("lock", LOCKS)
def test_the_oldest_supported_python_can_install_every_version(lock: str):
    """Checks the packages whose locked version is installed here, because only their metadata is known."""
    pins = (line.split(";")[0].strip().split("==") for line in lock_lines((ROOT / lock).read_text()))
    installed = {canonicalize_name(each.name): each for each in distributions()}
    known = [installed[name] for name, version in pins if name in installed and installed[name].version == version]
    asks = {f"{each.name} {each.version}": each.metadata.get("Requires-Python") or "" for each in known}
    assert known
    assert [each for each, range_ in asks.items() if not SpecifierSet(range_).contains(OLDEST_PYTHON)] == []


def test_every_direct_dependency_has_a_lower_and_an_upper_bound():
    for requirement in direct_dependencies():
        operators = {specifier.operator for specifier in requirement.specifier}
        assert operators & {"<", "=="}, f"{requirement} may become any version"


def test_the_setup_script_installs_a_torch_version_that_pyproject_allows():
    (wanted,) = [requirement for requirement in direct_dependencies() if requirement.name == "torch"]
    (written,) = re.findall(r'^TORCH="(.*)"$', (ROOT / "scripts/setup.sh").read_text(), re.MULTILINE)
    assert Requirement(written).specifier == wanted.specifier
