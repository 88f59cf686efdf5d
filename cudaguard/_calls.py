"""Name the torch call that a stack was making: `torch.Tensor.cuda`, `torch.cuda.is_available`.

A C function leaves no frame, so its name is read from the source text of the call; a Python function of torch's has one.
"""

from __future__ import annotations

import ast
import linecache
import re

from . import _source
from ._places import LIBRARY, TORCH, USER, Frame, Site, Span, kind

# Where the name that users write differs from the module that holds the code.
PUBLIC = {
    "torch.nn.modules.module": "torch.nn.Module",
    "torch._tensor": "torch.Tensor",
    "torch.serialization": "torch",
    "torch.functional": "torch",
    "torch.utils.data.dataloader": "torch.utils.data.DataLoader",
    "torch.cuda.memory": "torch.cuda",
    "torch.cuda.random": "torch.cuda",
    "torch.cuda.streams": "torch.cuda",
}
PLUMBING = re.compile(r"torch\.(utils\._|_|overrides|autograd\.function)")


def name(site: Site) -> str:
    """The call a site was making, as a user would write it; "" if the source does not tell."""
    return _from_torch_frame(site) or _from_library(site) or _from_source(site)


def _from_torch_frame(site: Site) -> str:
    """The outermost public torch function that the user's line called."""
    inner = site.stack[site.position + 1 :]
    body = max((i for i, frame in enumerate(inner) if frame.function == "<module>"), default=-1)  # what an import runs is no call of the user's
    for frame in inner[body + 1 :]:
        if body >= 0 and frame.function.startswith("_"):
            continue
        module = _module(frame)
        if module and not (PLUMBING.match(module) and module not in PUBLIC):
            name = PUBLIC.get(module, module)
            return f"{name}.{frame.function}" if not frame.function.startswith("__") else PUBLIC.get(module, "")
    return ""


def _from_library(site: Site) -> str:
    """What the innermost library's line calls, where the user's only imports it."""
    inner = [frame for frame in site.stack[site.position + 1 :] if kind(frame.file) == LIBRARY]
    if not inner or site.importing is None:
        return ""
    return at(Site(inner[-1].file, inner[-1].line, inner[-1].function))


def at(line: Site) -> str:
    """What a line calls, as far as its source tells: torch, if it names torch, as in `bool(torch.cuda.is_available())`."""
    named = re.search(r"\btorch\.[\w.]+(?=\()", line.code)
    return named.group() if named else _from_source(line)


def _module(frame: Frame) -> str:
    if kind(frame.file) != TORCH:
        return ""
    path = frame.file.replace("\\", "/").rpartition("/torch/")[2].removesuffix(".py").removesuffix("/__init__")
    return "torch." + path.replace("/", ".") if path != "__init__" else "torch"


def _from_source(site: Site) -> str:
    dotted = _dotted(_text(site.file, site.span)) if site.span and kind(site.file) == USER else _likely(site.code)
    if not dotted:
        return ""
    root, _, last = dotted.rpartition(".")
    return dotted if dotted.startswith("torch.") else f"torch.Tensor.{last}" if root and last in TENSOR_METHODS else dotted


TENSOR_METHODS = {
    "cuda",
    "to",
    "cpu",
    "pin_memory",
    "item",
    "tolist",
    "numpy",
    "clone",
    "new_tensor",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_empty",
    "type",
}


def _text(file: str, span: Span) -> str:
    lines = [linecache.getline(file, n) for n in range(span.line, span.end_line + 1)]
    if not lines:
        return ""
    lines[-1] = lines[-1].encode()[: span.end_column].decode(errors="ignore")
    lines[0] = lines[0].encode()[span.column :].decode(errors="ignore")
    return "".join(lines)


def _likely(line: str) -> str:
    """Of the calls on a line, the outermost of torch or of a tensor: which of them runs is what Python 3.10 does not record."""
    called = [_names(node.func) for node in ast.walk(_source.tree(line) or ast.Module([], [])) if isinstance(node, ast.Call)]
    torchs = [name for name in called if name.startswith("torch.") or ("." in name and name.rpartition(".")[2] in TENSOR_METHODS)]
    return torchs[0] if torchs else _dotted(line)


def _dotted(text: str) -> str:
    """The function of the outermost call in a piece of source, as `a.b.c`; a receiver that is not a name becomes `_`.

    Brackets first: the piece may be the middle of some, over several lines, and mean nothing by itself. Python 3.10 knows only a line of it.
    """
    text = text.strip().removesuffix(":")
    tree = _source.tree(f"({'_' if text.startswith('.') else ''}{text}\n)") or _source.tree(text)
    said = tree.body[0] if tree and len(tree.body) == 1 else None
    if not isinstance(said, ast.Expr):
        found = re.search(r"(?:[\w.]*\.)?\w+(?=\()", text)
        return found.group() if found else ""
    return _names(said.value.func if isinstance(said.value, ast.Call) else said.value)


def _names(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return f"{_names(node.value) or '_'}.{node.attr}" if isinstance(node, ast.Attribute) else ""
