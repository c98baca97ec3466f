"""Code of a figure: the statements that a benchmark's command runs, and which of them have changed.

Names are followed: a statement of a module counts where a statement that counts uses what it binds, and
where it may do more than bind, as the import of its module then does that. Comments, docstrings, layout,
what is raised, an `except` that ends in a raise, limits of a recipe's values, and statements that nothing
runs yet change no figure. Of a command that starts other programs of the packages, modules count whole, and
so does what `python -m trainer` uses.
"""

import ast
import copy
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("vidcurate", "trainer")
NOT_CODE = ("rows", "figure_code")  # what keeps the figures
BINDS = ("dataclass", "cache", "functools.cache", "lru_cache", "contextmanager")
"""decorators that only bind; another may register"""
LIMITS = ("gt", "ge", "lt", "le", "min_length", "max_length", "pattern", "allow_inf_nan")
"""what pydantic refuses a recipe's value by"""
Code = dict[Path, set[str] | None]
"""the names that count in each file; None: all"""
Import = tuple[str, str, str | None]
"""name here, module, name there (None: the module itself)"""


def git(*words: str) -> subprocess.CompletedProcess[str]:
    """Run git in the repository."""
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)


@cache
def _body(file: Path) -> list[ast.stmt]:
    return ast.parse(file.read_text()).body


def _bound(node: ast.AST) -> Iterator[str]:
    """Yield the names that a statement binds in its module."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.alias):
        yield node.asname or node.name.partition(".")[0]
    for child in ast.iter_child_nodes(node):
        yield from _bound(child)


def _acts(statement: ast.stmt) -> bool:
    """Return whether a statement may do more than bind names."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return any(ast.unparse(one).partition("(")[0] not in BINDS for one in statement.decorator_list)
    if isinstance(statement, ast.Assign | ast.AnnAssign | ast.Import | ast.ImportFrom):
        return not list(_bound(statement))
    if isinstance(statement, ast.If) and ast.unparse(statement.test) == "__name__ == '__main__'":
        return False
    return not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))


@cache
def _binders(file: Path) -> dict[str | None, list[ast.stmt]]:
    """Return the statements of a file by the names that they bind; under None, those that act."""
    found: dict[str | None, list[ast.stmt]] = {None: [one for one in _body(file) if _acts(one)]}
    for statement in _body(file):
        for name in set(_bound(statement)):
            found.setdefault(name, []).append(statement)
    return found


def _used(node: ast.AST) -> Iterator[tuple[str, str | None]]:
    """Yield the names that a statement uses, each with the attribute that it takes of it, if any."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        yield node.value.id, node.attr
        return
    if isinstance(node, ast.Name):
        yield node.id, None
    for child in ast.iter_child_nodes(node):
        yield from _used(child)


@cache
def _uses(statement: ast.stmt) -> frozenset[tuple[str, str | None]]:
    """Return what a statement uses; what it uses for a refusal alone changes no figure."""
    return frozenset(_used(_WithoutRefusals().visit(copy.deepcopy(statement))))


@cache
def _imports(statement: ast.stmt) -> frozenset[Import]:
    """Return the imports of a statement, those within its functions and by name too."""
    found: list[Import] = []
    for node in ast.walk(statement):
        if isinstance(node, ast.ImportFrom) and node.module:
            found += ((one.asname or one.name, node.module, one.name) for one in node.names)
        elif isinstance(node, ast.Import):
            found += ((one.asname or one.name.partition(".")[0], one.name, None) for one in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
            named = node.args[0]
            if isinstance(named, ast.Constant) and isinstance(named.value, str):
                found.append(("", named.value, None))
    return frozenset(found)


@cache
def _imports_of(file: Path) -> list[Import]:
    return [one for statement in _body(file) for one in _imports(statement)]


def _file_of(module: str, beside: Path) -> Path | None:
    """Return the file of a module of the packages or of a script beside; None: another library's."""
    names = module.split(".")
    if names[0] not in PACKAGES:
        return next(
            (one for one in [beside / f"{module}.py"] if one.is_file() and module not in NOT_CODE), None
        )
    place = ROOT.joinpath(*names)
    return next((one for one in (place.with_suffix(".py"), place / "__init__.py") if one.is_file()), None)


def _entered(
    beside: Path, module: str, name: str | None, attribute: str | None
) -> Iterator[tuple[Path, str | None]]:
    """Yield the file and the name in it that an import leads to; `attribute` is taken of what it binds."""
    inside = _file_of(f"{module}.{name}", beside) if name else None
    if inside is not None and module.split(".")[0] in PACKAGES:
        below = _file_of(f"{module}.{name}.{attribute}", beside) if attribute else None
        yield (inside, attribute) if below is None else (below, None)
    elif (file := _file_of(module, beside)) is not None:
        yield file, name or attribute


def _leads_to(file: Path, statement: ast.stmt, *, is_whole: bool) -> Iterator[tuple[Path, str | None]]:
    """Yield what a statement of a file needs: names of other files and of its own; None: a file whole."""
    if is_whole:
        for _, module, name in _imports(statement):
            yield from ((one, None) for one, _ in _entered(file.parent, module, name, None))
        return
    used, own = _uses(statement), _imports(statement)
    names = {name for name, _ in used}
    for here, module, name in own | {one for one in _imports_of(file) if one[0] in names}:
        is_whole = name is None and (not here or module.startswith(f"{here}."))  # by name, or `import a.b`
        for attribute in {None} if is_whole else {attribute for one, attribute in used if one == here}:
            yield from _entered(file.parent, module, name, attribute)
    yield from ((file, name) for name in names)


def _walk(script: Path, *, is_whole: bool) -> Code:
    code: Code = {}
    followed: set[int] = set()
    todo: list[tuple[Path, str | None]] = [(script, None)]
    while todo:
        file, name = todo.pop()
        is_new, names = file not in code, code.setdefault(file, set())
        if names is None or (name in names and not is_new):
            continue
        code[file] = None if name is None else names | {name}
        if is_new:  # an import runs the packages above first
            above = [folder / "__init__.py" for folder in file.parents if ROOT in folder.parents]
            todo += [(one, None if is_whole else "") for one in above if one.is_file() and one != file]
        named = _body(file) if name is None else _binders(file).get(name, [])
        for statement in named + _binders(file)[None] * is_new:
            is_import = isinstance(statement, ast.Import | ast.ImportFrom)
            if id(statement) not in followed and (is_whole or not is_import):
                followed.add(id(statement))
                todo += _leads_to(file, statement, is_whole=is_whole)
    return code


def _words(script: Path) -> set[object]:
    return {node.value for one in _body(script) for node in ast.walk(one) if isinstance(node, ast.Constant)}


def _joined(codes: Iterable[Code]) -> Code:
    """Return the files of all `codes`; a file that one of them counts whole counts whole."""
    joined: Code = {}
    for file, names in (one for code in codes for one in code.items()):
        before = joined.get(file, set())
        joined[file] = None if names is None or before is None else before | names
    return joined


@cache
def code_of(command: str) -> dict[str, set[str] | None]:
    """Return the files that decide a row's figure, each with the names that count in it; None: all of it.

    Data files beside a module count too, but one that only other modules beside it name. A script that uses
    nothing of the packages starts them as programs: then both count whole.
    """
    script = ROOT / next((word for word in command.split() if word.endswith(".py")), "")
    if not script.is_file():
        return dict.fromkeys(PACKAGES)
    code = _walk(script, is_whole=False)
    words = {word for file in code if file.parent == script.parent for word in _words(file)}
    if words & {"-m", "vidcurate"}:
        code = _walk(script, is_whole=True)
    if {"-m", "trainer"} <= words:
        code = _joined([code, _walk(ROOT / "trainer" / "__main__.py", is_whole=False)])
    found = {str(file.relative_to(ROOT)): names for file, names in code.items()}
    folders = {Path(name).parent for name in found if name.startswith(PACKAGES)}
    if not folders:
        return found | dict.fromkeys(PACKAGES)
    data = [path for folder in sorted(folders) for path in sorted((ROOT / folder).iterdir())]
    is_data = [path for path in data if path.is_file() and path.suffix not in (".py", ".pyc")]
    return found | dict.fromkeys(
        str(path.relative_to(ROOT)) for path in is_data if not _is_of_others(path, found)
    )


def _is_of_others(data: Path, found: Iterable[str]) -> bool:
    """Return whether modules beside a data file name it, and none of them is among those `found`."""
    named_by = [one for one in data.parent.glob("*.py") if data.name in _words(one)]
    return bool(named_by) and not {str(one.relative_to(ROOT)) for one in named_by} & {*found}


class _WithoutRefusals(ast.NodeTransformer):
    """Drops what is raised, each `except` that ends in a raise, and the limits of a recipe's values.

    No figure is of a run that ends so.
    """

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if ast.unparse(node.func) in ("Field", "ConfigDict"):
            node.keywords = [one for one in node.keywords if one.arg not in LIMITS]
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        is_annotated = ast.unparse(node.value) == "Annotated" and isinstance(node.slice, ast.Tuple)
        parts = node.slice.elts if is_annotated and isinstance(node.slice, ast.Tuple) else []
        return parts[0] if parts and {ast.unparse(one) for one in parts[1:]} == {"Field()"} else node

    def visit_Raise(self, node: ast.Raise) -> ast.Raise:
        node.exc = node.cause = None
        return node

    def visit_Try(self, node: ast.Try) -> ast.Try | list[ast.stmt]:
        self.generic_visit(node)
        node.handlers = [one for one in node.handlers if not isinstance(one.body[-1], ast.Raise)]
        return node if node.handlers or node.orelse or node.finalbody else node.body


def _is_for_refusals(statement: ast.stmt, parts: list[ast.stmt]) -> bool:
    """Return whether a private function is used by none of a module's other statements without refusals."""
    if not isinstance(statement, ast.FunctionDef) or not statement.name.startswith("_") or _acts(statement):
        return False
    others = [one for one in parts if one is not statement]
    return all(statement.name not in {name for name, _ in _used(one)} for one in others)


def statements(code: str, names: set[str] | None = None) -> set[str]:
    """Return a module's outermost statements that count as text, each imported name as one of its own."""
    tree: ast.Module = _WithoutRefusals().visit(ast.parse(code))
    for node in ast.walk(tree):
        is_documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if is_documented and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    parts: list[ast.stmt] = []
    for node in tree.body:
        is_import = isinstance(node, ast.Import | ast.ImportFrom)
        parts += [type(node)(**vars(node) | {"names": [one]}) for one in node.names] if is_import else [node]
    while unused := [one for one in parts if _is_for_refusals(one, parts)]:
        parts = [one for one in parts if one not in unused]
    return {ast.dump(one) for one in parts if names is None or _acts(one) or names & set(_bound(one))}


def _is_changed(measured: str, name: str, names: set[str] | None) -> bool:
    """Return whether a statement of a file at the commit `measured` is gone or another now.

    A statement that was added is no change: what calls it has changed itself.
    """
    now = ROOT / name
    if now.suffix != ".py" or not now.is_file():
        return True
    before = git("show", f"{measured}:{name}")
    if before.returncode:
        return False  # a file added since: what imports it has changed itself
    return not statements(before.stdout, names) <= statements(now.read_text())


@cache
def changes(measured: str, command: str) -> list[str] | None:
    """Return the files of a row's code that do something else than at its commit; None where unknown."""
    commit_id = measured.rstrip("+")
    if not measured:
        return None
    code = code_of(command)
    changed = git("diff", "--name-only", commit_id, "--", *code)
    if changed.returncode:
        return None
    return [name for name in changed.stdout.split("\n")[:-1] if _is_changed(commit_id, name, code.get(name))]
