"""Where a program put the data on the GPU that a line uses. Its source is read, nothing is run.

Names are followed: from the line that uses the data to what gives those names their values, until something is moved to the GPU.
Where CUDA was started is another question: `torch.zeros(1, device="cuda")` at the top of a script makes nothing that a dataset holds.
"""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from . import _places, _rewrite, _source
from ._journal import Step
from ._places import Site

Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Node = ast.Module | ast.ClassDef | Function
Scope = tuple[Node, ...]  # the module, then what stands around a statement, outermost first
SELF = ("self", "cls")
HEADS = ("iter", "test", "items")  # what a statement that holds others evaluates itself
MOST = 100  # values that are looked at: what a line uses is seldom more than a few names away


class Value(NamedTuple):
    """An expression that a name gets its value from, and the statement that it is part of."""

    part: ast.AST
    file: str
    statement: ast.stmt
    scope: Scope


def of(touch: Site | None, fork: Site | None, steps: Iterable[Step] = (), forked: bool = True) -> list[Site]:
    """The statements that put on the GPU what is used at a touch, or else (unless not `forked`) by what was forked; in the order of the source.

    The steps that started CUDA tell where else the program is written: a name may be imported, or of another cell.
    """
    places = [site for site in (touch, fork if forked else None) if site and not _places.library(site)]
    files = [site.file for site in (*places, *(step.site for step in steps)) if not _places.library(site)]
    forks = {(frame.file, frame.function) for frame in fork.stack} if fork else set()
    try:
        book = _book(tuple(dict.fromkeys([*files, *_places.cells()])))
        return next(filter(None, (book.movers(site, whole=site is touch and (site.file, site.function) not in forks) for site in places)), [])
    except RecursionError:  # generated source may be nested deeper than Python walks: the finding is worth more than this part of its fix
        return []


def on_cpu(site: Site) -> str:
    """The statement of such a place without its moves to the GPU; "" where it does nothing else."""
    kept = _stays(_source.statement(site.file, site.line))
    return "" if _rewrite.does_nothing(kept) else kept


@functools.lru_cache(1)  # the fixes of a finding ask more than once, and most findings are about the same files
def _book(files: tuple[str, ...]) -> _Book:
    return _Book(files)


class _Book:
    """What gives names their values, in some files."""

    def __init__(self, files: Iterable[str]) -> None:
        self.values: defaultdict[str, list[Value]] = defaultdict(list)  # what statements evaluate, by file
        self.bound: defaultdict[tuple[Node, str], list[Value]] = defaultdict(list)
        self.calls: defaultdict[str, list[Value]] = defaultdict(list)  # by the last name of what is called
        self.outside: set[tuple[Node, str]] = set()  # names that a function declares global
        self.modules: list[Node] = []
        self.classes: list[Node] = []
        for file in files:
            self._read(file)

    def _read(self, file: str) -> None:
        tree = _source.file_tree(file)
        if tree is None:
            return
        self.modules.append(tree)
        for statement, scope in _statements(tree, (tree,)):
            self.classes += [statement] if isinstance(statement, ast.ClassDef) else []
            self.outside.update((scope[-1], name) for name in (statement.names if isinstance(statement, ast.Global) else ()))
            for value in (Value(part, file, statement, scope) for part in _evaluated(statement)):
                self._note(value)

    def _note(self, value: Value) -> None:
        self.values[value.file].append(value)
        for owner, name in _bound(value.statement, value.scope):
            self.bound[value.scope[0] if (owner, name) in self.outside else owner, name].append(value)
        for call in ast.walk(value.part):
            if isinstance(call, ast.Call):
                self.calls[_rewrite.last_name(call.func)].append(value._replace(part=call))

    def movers(self, site: Site, whole: bool) -> list[Site]:
        """What the names on a line lead to, if to anything; `whole` takes all the names of its function then, which will be used next.

        Of a loop on one line the head comes first, since nobody says which part was running.
        """
        values = self.values[site.file]
        around = [value for value in values if _covers(value.statement, site.line)]
        for start in (value for value in around if value.statement.lineno == around[-1].statement.lineno):
            found = self._followed(start)
            if found and whole and isinstance(start.scope[-1], FUNCTIONS):
                found += [mover for value in values if value.scope == start.scope for mover in self._followed(value)]
            if found:
                return sorted({_site(value) for value in found}, key=lambda site: (site.file, site.line))
        return []

    def _followed(self, start: Value) -> list[Value]:
        waiting, seen, found = [start], {id(start.part)}, list[Value]()
        while waiting and len(seen) < MOST:
            given = [v for name in _names(waiting[0].part) for v in self._given(name, waiting[0].scope) if id(v.part) not in seen]
            moving = [value for value in given if _moves(value)]
            waiting = waiting[1:] + [value for value in given if value not in moving]
            found += moving
            seen.update(id(value.part) for value in given)
        return found

    def _given(self, name: str, scope: Scope) -> list[Value]:
        """What gives a name its value, as it is used in a scope."""
        for depth, owner in reversed(list(enumerate(scope))):
            if isinstance(owner, FUNCTIONS) and name in _parameters(owner):
                return self._arguments(name, owner, scope[depth - 1])
            if (owner, name) in self.bound:
                return self.bound[owner, name]
        elsewhere = self.classes if "." in name else self.modules  # a base class; a module that the name was imported from
        return next((self.bound[owner, name] for owner in elsewhere if (owner, name) in self.bound), [])

    def _arguments(self, name: str, function: Function, outer: Node) -> list[Value]:
        """What a parameter is given, wherever the function is called."""
        method = isinstance(outer, ast.ClassDef)
        called = outer.name if isinstance(outer, ast.ClassDef) and function.name == "__init__" else function.name
        place = _parameters(function).index(name) - method
        found = ((call, _argument(call.part, name, place)) for call in self.calls[called])
        return [call._replace(part=part) for call, part in found if part]


def _site(value: Value) -> Site:
    function = next((node.name for node in reversed(value.scope) if isinstance(node, FUNCTIONS)), "<module>")
    return Site(value.file, value.statement.lineno, function, cell=_places.cell(value.file))


def _statements(node: ast.AST, scope: Scope) -> Iterator[tuple[ast.stmt, Scope]]:
    """Every statement below a node, in the order of the source."""
    for part in ast.iter_child_nodes(node):
        if isinstance(part, ast.stmt):
            yield part, scope
        if isinstance(part, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield from _statements(part, (*scope, part) if isinstance(part, (ast.ClassDef, *FUNCTIONS)) else scope)


def _evaluated(statement: ast.stmt) -> list[ast.AST]:
    """What a statement evaluates itself: the value of an assignment, the head of a loop."""
    if not hasattr(statement, "body"):
        return [getattr(statement, "value", None) or statement]
    heads = (getattr(statement, field, None) for field in HEADS)
    return [part for head in heads for part in (head if isinstance(head, list) else [head]) if part is not None]


def _covers(statement: ast.stmt, line: int) -> bool:
    return statement.lineno <= line <= (statement.end_lineno or statement.lineno)


def _bound(statement: ast.stmt, scope: Scope) -> Iterator[tuple[Node, str]]:
    """The names that a statement gives a value, and whose they are. A `return` gives its function's name one."""
    around = scope[-1]
    if isinstance(statement, ast.Return) and isinstance(around, FUNCTIONS):
        yield scope[-2], _member(scope[-2], around.name)
    for text in (text for target in _targets(statement) for text in _texts(target)):
        if "." in text:
            yield next((node for node in reversed(scope) if isinstance(node, ast.ClassDef)), around), text
        else:
            yield around, _member(around, text)


def _member(owner: Node, name: str) -> str:
    """A name in a class's body, as its methods use it."""
    return f"self.{name}" if isinstance(owner, ast.ClassDef) else name


def _targets(statement: ast.stmt) -> list[ast.expr]:
    """What is assigned to; of a method that is called for what it does, what it is called of: `model.cuda()`, `rows.append(x)`."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
        return [_registered(call.func, call.args) or call.func.value]
    target = getattr(statement, "target", None)
    return [*getattr(statement, "targets", ()), *([target] if target is not None else [])]


def _registered(method: ast.Attribute, given: list[ast.expr]) -> ast.expr | None:
    """`self.register_buffer("table", x)` gives self.table a value."""
    first = given[0] if given and method.attr.startswith("register_") else None
    return ast.Attribute(method.value, str(first.value), ast.Store()) if isinstance(first, ast.Constant) else None


def _names(part: ast.AST) -> Iterator[str]:
    """The names that an expression reads, but those of its own: of a comprehension, of a lambda."""
    nodes = list(ast.walk(part))
    own = {text for node in nodes if isinstance(node, ast.comprehension) for text in _texts(node.target)}
    own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    read = (node for node in nodes if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load))
    yield from (text for node in read for text in _texts(node) if text not in own)


def _texts(node: ast.expr) -> Iterator[str]:
    """x; self.x; the x of x[0], of x.y, and of x, z."""
    if isinstance(node, (ast.Tuple, ast.List)):
        yield from (text for part in node.elts for text in _texts(part))
    elif isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in SELF:
        yield f"self.{node.attr}"
    elif isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
        yield from _texts(node.value)


def _parameters(function: Function) -> list[str]:
    given = function.args
    return [arg.arg for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs)]


def _argument(call: ast.AST, name: str, place: int) -> ast.expr | None:
    """What a call gives for a parameter, by name or by place; None where it gives nothing, or nobody can tell."""
    assert isinstance(call, ast.Call)
    named = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
    return named or (call.args[place] if 0 <= place < len(call.args) else None)


def _moves(value: Value) -> bool:
    """Whether a value is moved to the GPU, or made there. Most have nothing in them that could, and that is seen at once."""
    if not any(map(_may_move, ast.walk(value.part))):
        return False
    code = ast.unparse(value.part)
    return _stays(code) != code


def _stays(code: str) -> str:
    """Source without its moves. Whoever calls `.to(dev)` here is not known to be a tensor, but nothing else is likely."""
    return _rewrite.without_cuda(code, _rewrite.MOVERS[0])


def _may_move(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in ("cuda", "to") or node.attr.endswith("Tensor")
    return isinstance(node, ast.keyword) and node.arg == "device"
