"""Writes the bytecode of what Hearth's processes import: its own modules, and those of others that they ask for.

That is one in twelve of the modules that an environment holds, so `make setup` compiles these and pip none; any other
is compiled when somebody first imports it. Does so also where PYTHONDONTWRITEBYTECODE is set, since each process would
compile them all over again there.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("cli", "gateway", "documents", "engine", "catalog", "tenants", "storage", "telemetry")


def module_names() -> list[str]:
    """Every module of our own, whoever imports it."""
    return [
        module.name for package in PACKAGES for module in pkgutil.walk_packages([str(ROOT / package)], f"{package}.")
    ]


def main() -> None:
    sys.dont_write_bytecode = False
    warnings.simplefilter("ignore")
    for name in module_names():
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            # What an option needs (triton a GPU) is missed by nobody who does not have it; a module of ours is.
            if (error.name or "").partition(".")[0] in PACKAGES:
                print(f"setup: {name} is left to its first use: {error}")
        except Exception as error:  # it is for another program to load
            print(f"setup: {name} is left to its first use: {error}")


if __name__ == "__main__":
    main()
