"""The house rules that a machine can check: who may import whom, and how long things may be."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "gapless"
FILES = sorted(SOURCE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

# A room may import from rooms of a lower floor and from itself.
FLOORS = {
    "columns": -2,
    "prompt": -1,
    "sampling": -1,
    "token_table": -1,
    "host_grammar": -1,
    "costs": -1,
    "errors": 0,
    "records": 0,
    "config": 0,
    "locks": 0,
    "own_process": 0,
    "kernels": 1,
    "constrain": 1,
    "observe": 1,
    "weights": 1,
    "images": 1,
    "models": 2,
    "adapters": 2,
    "device": 3,
    "engine": 4,
    "skills": 5,
    "api": 6,
    "bench": 7,
    "serve": 8,
    "cli": 9,
}
STRANGERS = {"fastapi", "uvicorn", "starlette", "zmq", "msgspec", "pydantic", "prometheus_client", "httpx", "aiohttp"}
STRANGERS |= {"pydantic_settings", "uvloop", "httptools", "yaml", "ray"}
PROCESS = {f"api/{name}.py" for name in ("child", "exchange", "lessons", "spawn", "wire")}
NO_TORCH = (
    "columns.py",
    "prompt.py",
    "sampling.py",
    "token_table.py",
    "host_grammar.py",
    "costs.py",
    "records.py",
    "errors.py",
    "config.py",
    "own_process.py",
)
NO_TORCH += ("engine/", "constrain/", "images/", "skills/", "observe/", "cli/")


def room_of(path: Path) -> str:
    relative = path.relative_to(SOURCE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """The module first."""
    return tuple(ast.walk(ast.parse(path.read_text())))


@cache
def imports_of(path: Path) -> tuple[str, ...]:
    names = []
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            names += [node.module or ""]
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(names)


@pytest.mark.parametrize("path", FILES, ids=str)
def test_no_upward_edge(path: Path) -> None:
    room = room_of(path)
    if room in ("__init__", "__main__"):
        return
    assert room in FLOORS, f"give the room {room} a floor"
    for name in imports_of(path):
        parts = name.split(".")
        if parts[0] == "gapless" and len(parts) > 1 and parts[1] in FLOORS and parts[1] != room:
            assert FLOORS[parts[1]] < FLOORS[room], f"{room} reaches up to {parts[1]} ({name})"


@pytest.mark.parametrize("path", FILES, ids=str)
def test_heavy_packages_stay_in_their_rooms(path: Path) -> None:
    relative = path.relative_to(SOURCE).as_posix()
    tops = {name.split(".")[0] for name in imports_of(path)}
    if not relative.startswith("serve/") and relative not in PROCESS:
        assert not tops & STRANGERS, f"{relative} imports {tops & STRANGERS}"
    if relative.startswith(NO_TORCH):
        assert "torch" not in tops, f"{relative} imports torch"


@pytest.mark.parametrize("path", FILES, ids=str)
def test_every_lock_is_one_that_a_fork_frees(path: Path) -> None:
    names = {"threading.Lock", "threading.RLock", "threading.Semaphore", "threading.BoundedSemaphore"}
    if room_of(path) != "locks":
        used = {ast.unparse(node) for node in nodes_of(path) if isinstance(node, ast.Attribute)} | set(imports_of(path))
        assert not used & names, f"{path}: use gapless.locks.Lock"


def test_planner_pages_and_pipeline_do_not_know_each_other() -> None:
    ledgers = {"planner", "pages", "pipeline"}
    for name in ledgers:
        seen = imports_of(SOURCE / "engine" / f"{name}.py")
        others = {f"gapless.engine.{other}" for other in ledgers - {name}}
        assert not others & set(seen), f"engine/{name}.py imports {others & set(seen)}"


@pytest.mark.parametrize("path", FILES, ids=str)
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") < 400, f"{path} has {text.count(chr(10))} lines"
    module, *nodes = nodes_of(path)
    assert isinstance(module, ast.Module) and ast.get_docstring(module), f"{path} does not say what it is for"
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= 60, f"{path}:{node.lineno} {node.name} has {length} lines"


@pytest.mark.parametrize("path", TESTS, ids=str)
def test_test_files_are_short(path: Path) -> None:
    assert path.read_text().count("\n") < 400, f"{path} is too long: split it by what it tests"


def test_the_library_and_the_command_line_import_no_server() -> None:
    strangers = sorted(STRANGERS)
    code = f"import sys, gapless.api.aio, gapless.api.load, gapless.cli.main; s = set({strangers!r})\n"
    code += "found = {m.split('.')[0] for m in sys.modules} & s\nassert not found, found"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(ROOT / "src")}, timeout=60)


def test_the_hub_runs_without_torch() -> None:
    code = (
        "import sys, gapless.engine.build, gapless.constrain.masks\n"
        "assert not [m for m in sys.modules if m.split('.')[0] == 'torch'], 'torch was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(ROOT / "src")}, timeout=60)
