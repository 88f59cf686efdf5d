"""A user's source: the statement that a line is part of, and what it would be without the GPU. By tables."""

from __future__ import annotations

import ast
import sys
import textwrap
from pathlib import Path

import pytest

from cudaguard import _rewrite, _source

TO = "torch.Tensor.to"


UNPARSED = {"half": "for x in", "null byte": "x = 1\0", "deep": "(" * 5000}
if sys.version_info >= (3, 11):  # Python 3.10 takes it
    UNPARSED["long chain"] = "f" + "()" * 100000


@pytest.mark.parametrize("text", UNPARSED.values(), ids=UNPARSED)
def test_what_python_cannot_parse_has_no_tree(text: str) -> None:
    """Whatever a line holds, it is no fault of the guard's."""
    assert _source.tree(text) is None


def test_the_parser_is_asked_again_where_another_thread_confused_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As CPython 3.11 does at times: seen with 64 threads that fail together. The guard stepped aside for it."""
    real, answers = ast.parse, [SystemError("AST constructor recursion depth mismatch (before=57, after=52)")] * 2

    def parse(text: str) -> ast.Module:
        if answers:
            raise answers.pop()
        return real(text)

    monkeypatch.setattr(ast, "parse", parse)
    assert _rewrite.loop_targets("for x, y in loader:") == ["x", "y"]
    assert answers == []


PROGRAM = """
    class Rows:
        def __getitem__(self, i):
            y = torch.zeros(  # three
                3,
                device="cuda",
            )  # of them
            if y: return y.cuda()  # at once
            with torch.cuda.device(0), \\
                 foo():  # both
                pass
            return torch.load(  # touch
                "p")
        @deco(torch.zeros(1).cuda())
        def g(self): pass
    for batch in loader:  # fork
        a = 1; b = batch.cuda()  # two
    else:
        é = "é".cuda()  # bytes are not letters
"""
ZEROS = 'y = torch.zeros(  # three\n    3,\n    device="cuda",\n)'
WITH = "with torch.cuda.device(0), \\\n     foo():"
LOAD = 'return torch.load(  # touch\n    "p")'


@pytest.mark.parametrize(
    ("mark", "statement"),
    [
        ("# three", ZEROS),
        ('device="cuda",', ZEROS),
        ("# of them", ZEROS),
        ("# at once", "if y: return y.cuda()"),
        ("torch.cuda.device(0)", WITH),
        ("# both", WITH),
        ("# touch", LOAD),
        ('"p")', LOAD),
        ("def g", "def g(self): pass"),
        ("# fork", "for batch in loader:"),
        ("# two", "a = 1; b = batch.cuda()"),
        ("# bytes", 'é = "é".cuda()'),
        ("else", "else:"),
    ],
)
def test_the_statement_that_a_line_is_part_of(mark: str, statement: str, tmp_path: Path) -> None:
    """Without its last comment, at the margin; of a loop or a `with` only the head."""
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(PROGRAM), encoding="utf-8")
    (line,) = [n for n, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1) if mark in text]
    assert _source.statement(str(file), line) == statement


def test_where_no_statement_can_be_found_the_line_stands_alone(tmp_path: Path) -> None:
    """A notebook's cell may hold magics, which are no Python; and there may be no file."""
    file = tmp_path / "cell.py"
    file.write_text("%time\n  x = y.cuda()\n")
    assert _source.statement(str(file), 2) == "x = y.cuda()"
    assert _source.statement(str(tmp_path / "gone.py"), 1) == ""


@pytest.mark.parametrize(
    ("code", "kept"),
    [
        ('return sample.to("cuda")', "return sample"),
        ("x = x.cuda()", "x = x"),
        ("x = x.cuda(0, non_blocking=True)", "x = x"),
        ("y = torch.zeros(3, device='cuda')", "y = torch.zeros(3)"),
        ("y = torch.zeros(3, device=device, dtype=torch.half)", "y = torch.zeros(3, dtype=torch.half)"),
        ("y = torch.zeros(device=device, size=(3,))", "y = torch.zeros(size=(3,))"),
        ("y = torch.zeros(device=device)", "y = torch.zeros()"),
        ("y = torch.zeros((3), device=(device))", "y = torch.zeros((3))"),
        ("y = torch.zeros(3, device='cpu')", "y = torch.zeros(3, device='cpu')"),
        ("y = x.to(self.device)", "y = x"),
        ("y = x.to('cpu')", "y = x.to('cpu')"),
        ("y = x.to(torch.float16)", "y = x.to(torch.float16)"),
        ("y = x.to('cuda', dtype=torch.half)", "y = x.to(dtype=torch.half)"),
        ("y = x.to(device, torch.half, copy=True)", "y = x.to(torch.half, copy=True)"),
        ("y = x.to(device, copy=True)", "y = x.clone()"),
        ("return a.cuda(), b.to('cuda:1')", "return a, b"),
        ("y = (a + b).cuda()", "y = (a + b)"),
        ("y = f(a.cuda().to('cuda:1')).cuda()", "y = f(a)"),
        ("net = Net(device=dev).to(device, non_blocking=True)", "net = Net()"),
        ("return {k: v.to(device) for k, v in d.items()}", "return {k: v for k, v in d.items()}"),
        ("return torch.cuda.FloatTensor([1])", "return torch.FloatTensor([1])"),
        ("x = x.type(torch.cuda.HalfTensor)", "x = x.type(torch.HalfTensor)"),
        ("y = torch.zeros(\n    3,\n    device='cuda',\n    dtype=d,\n)", "y = torch.zeros(\n    3,\n    dtype=d,\n)"),
        ("for x in f(y.cuda()):", "for x in f(y):"),
        ("elif x.cuda().sum() > 3:", "elif x.sum() > 3:"),
        ("é = 'é'; y = x.cuda() + é", "é = 'é'; y = x + é"),
        ("not python (", "not python ("),
        ("", ""),
    ],
)
def test_a_statement_without_its_moves_to_the_gpu(code: str, kept: str) -> None:
    """What is left can be pasted, and is otherwise as the user wrote it."""
    assert _rewrite.without_cuda(code) == kept


@pytest.mark.parametrize(
    ("code", "kept"),
    [
        ("return x.to(self.rank)", "return x"),
        ("return x.to(0)", "return x"),
        ("return x.to(torch.accelerator.current_accelerator())", "return x"),
        ("return x.to(torch.half)", "return x.to(torch.half)"),
        ("return x.to(y.dtype)", "return x.to(y.dtype)"),
        ("return x.to('cpu')", "return x.to('cpu')"),
    ],
)
def test_what_was_called_tells_that_a_name_is_a_device(code: str, kept: str) -> None:
    """Where `.to(...)` went to the GPU, its first argument is the device, whatever it is called."""
    assert _rewrite.without_cuda(code, TO) == kept


@pytest.mark.parametrize(("code", "nothing"), [("x = x", True), ("self.a.b", True), ("x = y", False), ("return x", False), ("f()", False)])
def test_what_may_be_deleted(code: str, nothing: bool) -> None:
    """Nobody should be told to write `x = x`."""
    assert _rewrite.does_nothing(code) is nothing


@pytest.mark.parametrize(
    ("code", "device"),
    [("x.to('cuda:1')", '"cuda:1"'), ("x.cuda()", '"cuda"'), ("x.to(device)", '"cuda"'), ("f('cuda:0', 'cuda:1')", '"cuda"'), ("(", '"cuda"')],
)
def test_the_device_that_a_statement_names(code: str, device: str) -> None:
    """The batch must go where its parts would have gone."""
    assert _rewrite.device(code) == device


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("for batch in loader:", ["batch"]),
        ("for x, y in loader:", ["x", "y"]),
        ("for i, (x, y) in enumerate(loader):", ["x", "y"]),
        ("for i, batch in enumerate(loader):", ["batch"]),
        ("next(iter(loader))", []),
        ("", []),
    ],
)
def test_the_names_that_a_loop_binds(code: str, names: list[str]) -> None:
    """Only those that are data, not the count."""
    assert _rewrite.loop_targets(code) == names


@pytest.mark.parametrize(
    ("code", "mapped"),
    [
        ("w = torch.load(path)", 'w = torch.load(path, map_location="cpu")'),
        ("w = torch.load((path))", 'w = torch.load((path), map_location="cpu")'),
        ("w = torch.load(path,)", 'w = torch.load(path, map_location="cpu",)'),
        ("w = torch.load(p, map_location='cuda')", 'w = torch.load(p, map_location="cpu")'),
        ("w = load(p, device)", 'w = load(p, "cpu")'),
        ("net.load_state_dict(torch.load(p))", 'net.load_state_dict(torch.load(p, map_location="cpu"))'),
        ("w = torch.load(\n    p\n)", 'w = torch.load(\n    p, map_location="cpu"\n)'),
        ("w = restore(path)", "w = restore(path)"),
        ("w = (", "w = ("),
    ],
)
def test_loading_to_the_cpu_can_be_pasted(code: str, mapped: str) -> None:
    """Whatever map_location said before."""
    assert _rewrite.with_map_location(code) == mapped
