"""The wheel contains every file of the packages, including files that are not modules."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
PACKAGES = [ROOT / name.removesuffix("*") for name in SETUPTOOLS["packages"]["find"]["include"]]
FILES = [
    path
    for package in PACKAGES
    for path in package.rglob("*")
    if path.is_file() and "__pycache__" not in path.parts and not path.is_relative_to(ROOT / "gateway" / "static")
]


def test_every_data_file_is_packaged():
    packed = {
        path
        for package, patterns in SETUPTOOLS["package-data"].items()
        for pattern in patterns
        for path in (ROOT / package).glob(pattern)
    }
    others = {path for path in FILES if path.suffix != ".py"}
    assert others
    assert others - packed == set()
