"""What a user's statement would be without the GPU. Text in, text out: only what must go is cut, the rest stays as it was written."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from . import _source

MOVERS = ("torch.Tensor.to", "torch.nn.Module.to")  # where one of them was called, what `.to(...)` is given is a device, whatever its name
DTYPES = ("float", "double", "half", "int", "long", "short", "bool", "uint8", "complex", "bfloat", "dtype", "quint", "qint")


class Edit(NamedTuple):
    """A piece of the source, as offsets in its bytes, and what stands there instead."""

    start: int
    end: int
    text: str = ""


class Statement:
    """A statement, and where in its source each part of it stands."""

    def __init__(self, code: str) -> None:
        self.code = code.encode()
        # A head needs a body to be a statement, and an `elif` is an `if`.
        self.cut = 2 if code.startswith("elif ") else 0
        self.tree = _source.tree(code[self.cut :] + (" pass" if code.endswith(":") else ""))
        self.starts = [0, *(at + 1 for at, byte in enumerate(self.code) if byte == ord("\n"))]

    def walk(self) -> Iterator[ast.AST]:
        return ast.walk(self.tree) if self.tree else iter(())

    def start(self, node: ast.expr | ast.keyword) -> int:
        return self._offset(node.lineno, node.col_offset)

    def end(self, node: ast.expr | ast.keyword) -> int:
        return self._offset(node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)

    def _offset(self, line: int, column: int) -> int:
        return self.starts[line - 1] + column + (self.cut if line == 1 else 0)

    def edited(self, edits: list[Edit]) -> str:
        """The source with the edits made, an edit inside another going with it. As it was, if that gives no statement."""
        code, before = self.code, len(self.code) + 1
        for edit in sorted(edits, key=lambda e: (e.end, -e.start), reverse=True):
            if edit.end <= before:
                code, before = code[: edit.start] + edit.text.encode() + code[edit.end :], edit.start
        return code.decode() if Statement(code.decode()).tree else self.code.decode()

    def find(self, text: bytes, start: int) -> int:
        """Where a text stands first from an offset on: brackets around an expression belong to no node."""
        return self.code.index(text, start)


def without_cuda(code: str, call: str = "") -> str:
    """A statement without its moves to CUDA: `.cuda()`, `.to(device)`, `device=...`, `torch.cuda.FloatTensor`. The same if it has none.

    `call` is what was called there, as far as it is known.
    """
    said = Statement(code)
    return said.edited([edit for node in said.walk() for edit in _stay(said, node, call)])


def with_map_location(code: str) -> str:
    """A statement whose torch.load(...) or torch.jit.load(...) loads to the CPU. The same if it has no call of such a name."""
    said = Statement(code)
    loads = [node for node in said.walk() if isinstance(node, ast.Call) and last_name(node.func) == "load" and node.args]
    return said.edited([_mapped(said, node) for node in loads])


def device(code: str) -> str:
    """The CUDA device that a statement names by a literal, as source: '"cuda:1"'. Else '"cuda"'."""
    texts = [node.value for node in Statement(code).walk() if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    named = sorted({text for text in texts if text.startswith("cuda")})
    return f'"{named[0]}"' if len(named) == 1 else '"cuda"'


def loop_targets(code: str) -> list[str]:
    """The names that a `for` line binds: `for x, y in loader:` gives x and y."""
    loop = next((node for node in Statement(code).walk() if isinstance(node, ast.For)), None)
    if loop is None:
        return []
    target = loop.target.elts[-1] if _enumerated(loop) and isinstance(loop.target, ast.Tuple) else loop.target
    return [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]


def does_nothing(code: str) -> bool:
    """Whether a statement that lost its moves may be deleted: `x = x`, or a name alone."""
    tree = _source.tree(code)
    said = tree.body[0] if tree and len(tree.body) == 1 else None
    if isinstance(said, ast.Assign):
        return all(ast.unparse(target) == ast.unparse(said.value) for target in said.targets)
    return isinstance(said, ast.Expr) and isinstance(said.value, (ast.Name, ast.Attribute))


def _enumerated(loop: ast.For) -> bool:
    return isinstance(loop.iter, ast.Call) and last_name(loop.iter.func) == "enumerate"


def last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _stay(said: Statement, node: ast.AST, call: str) -> Iterator[Edit]:
    """The edits that keep what one part of a statement makes on the CPU."""
    if isinstance(node, ast.Attribute) and node.attr.endswith("Tensor") and ast.unparse(node.value) == "torch.cuda":
        yield Edit(said.start(node), said.end(node), f"torch.{node.attr}")
    elif isinstance(node, ast.Call) and _is_move(node, call):
        assert isinstance(node.func, ast.Attribute)
        yield Edit(said.find(b".", said.end(node.func.value)), said.end(node), _rest(node))
    elif isinstance(node, ast.Call):
        yield from (_argument(said, node, k) for k in node.keywords if k.arg == "device" and not _names_cpu(k.value))


def _is_move(node: ast.Call, call: str) -> bool:
    if not isinstance(node.func, ast.Attribute):
        return False
    return node.func.attr == "cuda" or (node.func.attr == "to" and _names_device(node, call))


def _names_device(node: ast.Call, call: str) -> bool:
    """Whether a `.to(...)` names a device: it may also name a dtype alone."""
    named = _device_of(node)
    if named is None or _names_cpu(named):
        return False
    text = ast.unparse(named)
    return "cuda" in text or "device" in text or (call in MOVERS and not last_name(named).startswith(DTYPES))


def _device_of(node: ast.Call) -> ast.expr | None:
    return node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "device"), None)


def _names_cpu(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and str(node.value).startswith("cpu")


def _rest(node: ast.Call) -> str:
    """What a move does beside moving: `.to(device, torch.half)` goes on as `.to(torch.half)`."""
    assert isinstance(node.func, ast.Attribute)
    if node.func.attr == "cuda":
        return ""
    parts = [ast.unparse(arg) for arg in node.args[1:]]
    parts += [ast.unparse(k) for k in node.keywords if k.arg not in ("device", "non_blocking")]
    if not parts or parts == ["True"]:  # non_blocking, by place
        return ""
    return ".clone()" if parts == ["copy=True"] else f".to({', '.join(parts)})"


def _argument(said: Statement, node: ast.Call, keyword: ast.keyword) -> Edit:
    """A keyword argument, with the comma that parts it from the one before, or from the one after where it is the first."""
    others: list[ast.expr | ast.keyword] = [*node.args, *(k for k in node.keywords if k is not keyword)]
    others.sort(key=said.start)
    before = [part for part in others if said.start(part) < said.start(keyword)]
    after = [part for part in others if said.start(part) > said.start(keyword)]
    if before:
        return Edit(said.find(b",", said.end(before[-1])), said.end(keyword))
    return Edit(said.start(keyword), said.start(after[0]) if after else said.end(keyword))


def _mapped(said: Statement, node: ast.Call) -> Edit:
    """`map_location="cpu"`: in place of what is given, or added."""
    given = next((k.value for k in node.keywords if k.arg == "map_location"), node.args[1] if len(node.args) > 1 else None)
    if given is not None:
        return Edit(said.start(given), said.end(given), '"cpu"')
    parts: list[ast.expr | ast.keyword] = [*node.args, *node.keywords]
    last, closing = max(map(said.end, parts)), said.end(node) - 1
    tail = said.code[last:closing].rstrip()
    at = last + len(tail)
    return Edit(at, at, ' map_location="cpu",' if tail.endswith(b",") else ', map_location="cpu"')
