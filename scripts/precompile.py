"""Compile the modules that Hearth's processes import to bytecode: its own modules and the imported libraries.

These are one in twelve of the installed modules, so `make setup` compiles only these and pip compiles none. All other
modules are compiled at their first import. Bytecode is also written if PYTHONDONTWRITEBYTECODE is set: otherwise each
process would compile all modules again.
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
    """Return the names of all modules of PACKAGES."""
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
            # Optional libraries, such as triton, may be missing. A missing module of the project is reported.
            if (error.name or "").partition(".")[0] in PACKAGES:
                print(f"setup: {name} is not compiled: {error}")
        except Exception as error:  # the program that imports the module reports the error
            print(f"setup: {name} is not compiled: {error}")


if __name__ == "__main__":
    main()
