"""Read the source of an installed package without importing it: veRL's trainer or vLLM would take half a minute."""

import ast
import functools
import importlib.util
from pathlib import Path


@functools.cache
def folder_of(package: str) -> Path:
    """Where a top-level package is installed; raises ``ModuleNotFoundError`` naming one that is not."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise ModuleNotFoundError(f"{package} is not installed")
    return Path(spec.submodule_search_locations[0])


@functools.cache
def text_of(module: str) -> str:
    """Source of a dotted module, e.g. ``verl.trainer.main_ppo``."""
    package, *rest = module.split(".")
    path = folder_of(package).joinpath(*rest)
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return file.read_text()


@functools.cache
def tree_of(module: str) -> ast.Module:
    """Syntax tree of a dotted module."""
    return ast.parse(text_of(module))


def find(door: str) -> ast.AST:
    """The definition behind ``module:name`` or ``module:Class.name``: a function, a class or an assignment.

    Raises:
        LookupError: the module has no such name at that level.
    """
    module, _, path = door.partition(":")
    node = tree_of(module)
    for name in path.split("."):
        node = next((child for child in _definitions(node.body) if name in _names(child)), None)
        if node is None:
            raise LookupError(f"{door}: no {name!r} there any more")
    return node


def parameters_of(door: str) -> list[str]:
    """Parameter names of a function or, for a class, of its ``__init__``, without ``self`` and ``cls``."""
    node = find(door)
    if isinstance(node, ast.ClassDef):
        node = find(f"{door}.__init__")
    args = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return [arg.arg for arg in args if arg.arg not in ("self", "cls")]


def source_of(door: str) -> str:
    """The text of one definition, for the few promises that no signature shows."""
    return ast.get_source_segment(text_of(door.partition(":")[0]), find(door))


def _definitions(body: list[ast.stmt]):
    for node in body:
        yield node
        for block in ("body", "orelse", "handlers", "finalbody"):
            if isinstance(node, (ast.If, ast.Try, ast.ExceptHandler)):
                yield from _definitions(getattr(node, block, []))


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []
