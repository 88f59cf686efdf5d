"""Where the data was put on the GPU that a worker uses: by tables of programs, and by a real loader."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from cudaguard import _provenance
from cudaguard._journal import INITIALISED, Step
from cudaguard._places import Frame, Site
from guarded import Program


def made(folder: Path, program: str) -> list[tuple[str, str]]:
    """The marked lines that put data on the GPU for the line marked `# touch`, or else for that marked `# fork`, and each without the GPU."""
    script = folder / "train.py"
    script.write_text(textwrap.dedent(program))
    rows = script.read_text().splitlines()
    marks = {text.rpartition("# ")[2]: number for number, text in enumerate(rows, 1) if "# " in text}
    places = [Site(str(script), marks[mark], "f") if mark in marks else None for mark in ("touch", "fork")]
    return [(rows[site.line - 1].rpartition("# ")[2], _provenance.on_cpu(site)) for site in _provenance.of(*places)]


ATTRIBUTES = """
    torch.zeros(1, device="cuda")
    class Base:
        def __init__(self):
            self.register_buffer("mean", torch.ones(3, device="cuda"))  # buffer
            self.rows = []
            for n in range(3):
                self.rows.append(torch.zeros(n).cuda())  # rows
    class Rows(Base):
        cache = {"a": torch.ones(3).cuda()}  # class
        other = torch.ones(3).cuda()
        def __getitem__(self, i):
            return self.mean + self.rows[i] + self.cache["a"]  # touch
"""
PARAMETERS = """
    def train(model, loader):
        for x in loader:  # fork
            model(x)
    class Rows(Dataset):
        def __init__(self, rows, mean):
            self.rows, self.mean = rows, mean
        def __getitem__(self, i):
            return normalised(self.rows[i], mean=self.mean)
    def normalised(x, mean):
        return x - mean  # touch
    model = Net().cuda()
    mean = torch.ones(3).cuda()  # mean
    rows = torch.zeros(100, 3)
    train(model, DataLoader(Rows(rows, mean)))
"""
RETURNED = """
    def data():
        with open("x") as file:
            rows = torch.load(file).to(dev, non_blocking=True)  # rows
        return TensorDataset(rows)
    def loaders(config):
        return DataLoader(data()), 3
    def main():
        net = Net().to(device)
        train, batches = loaders(config)
        for i, (x,) in enumerate(train):  # fork
            net(x)
"""
GLOBALS = """
    model = None
    def init():
        global model
        model = Net()
        model.eval()
        model.to(dev)  # model
    def work(i):
        return model(i)  # touch
"""
INLINE = """
    model = Net().cuda()
    loader = DataLoader([x.cuda() for x in rows], sampler=Sampler(torch.arange(3)))  # loader
    for batch in loader: model(0)  # fork
"""
LOOPS = """
    def main():
        for table in (torch.ones(3).cuda(), plain):  # loop
            while True:
                if os.fork() == 0:
                    table.sum()  # touch
"""


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (
            ATTRIBUTES,
            [
                ("buffer", 'self.register_buffer("mean", torch.ones(3))'),
                ("class", 'cache = {"a": torch.ones(3)}'),
                ("rows", "self.rows.append(torch.zeros(n))"),
            ],
        ),
        (PARAMETERS, [("mean", "mean = torch.ones(3)")]),
        (RETURNED, [("rows", "rows = torch.load(file)")]),
        (GLOBALS, [("model", "")]),
        (LOOPS, [("loop", "for table in (torch.ones(3), plain):")]),
    ],
    ids=["attributes", "parameters", "returned", "globals", "loops"],
)
def test_names_lead_to_the_line_that_made_the_data(program: str, expected: list[tuple[str, str]], tmp_path: Path) -> None:
    """Never to the model that the main process trains, nor to the line that merely started CUDA."""
    assert sorted(made(tmp_path, program)) == expected


NEXT = """
    class Rows:
        def __init__(self, rows):
            self.rows = rows.cuda()  # rows
            self.labels = labels().cuda()  # labels
            self.unused = torch.ones(1).cuda()
        def __getitem__(self, i):
            row = self.rows[i]  # touch
            return row, self.labels[i]
"""


def test_what_the_function_uses_next_is_found_too(tmp_path: Path) -> None:
    """Or the next line would be the next error. Not where the function itself forks: it may do much else."""
    assert [mark for mark, _ in made(tmp_path, NEXT)] == ["rows", "labels"]
    file = str(tmp_path / "train.py")
    fork = Site(file, 9, "__getitem__", (Frame(file, 9, "__getitem__", 0),))
    assert [site.line for site in _provenance.of(Site(file, 8, "__getitem__"), fork)] == [4]


def test_data_that_is_moved_where_the_loader_is_made_is_found_there(tmp_path: Path) -> None:
    """The statement that makes the loader is the one to change."""
    assert made(tmp_path, INLINE) == [("loader", "loader = DataLoader([x for x in rows], sampler=Sampler(torch.arange(3)))")]


@pytest.mark.parametrize(
    "program",
    [
        "x = y  # touch\ny = x\n",
        "from data import table\ntable[0]  # touch\n",
        "def f(x, *rest, y=1):\n    return x + y + rest[0]  # touch\nf(*everything)\nf\n",
        "def f():\n    return f() or f  # touch\n",
        "class A:\n    def __init__(self, *, k):\n        self.k = k\n    def g(self):\n        return self.k + self.nothing  # touch\nA()\nA(k=A)\n",
        "for x in (  # touch\n",
        "x = y.cuda()\n[x for x in rows] + list(map(lambda y, x=1: x, rows))  # touch\n",
        "lambda x: x  # touch\n",
    ],
)
def test_what_leads_nowhere_is_no_fault(program: str, tmp_path: Path) -> None:
    """Circles, names from elsewhere, arguments that nobody can follow, and what is no Python at all."""
    assert made(tmp_path, program) == []


def test_source_that_is_nested_too_deeply_costs_the_lines_alone(tmp_path: Path) -> None:
    """Generated code may be so: the finding must not be lost for a part of its fix."""
    assert made(tmp_path, "x = y.cuda()" + " + x" * 600 + "\nx  # touch\n") == []


def test_a_name_is_looked_for_in_the_files_of_the_other_places(tmp_path: Path) -> None:
    """An imported name, and one of another cell of a notebook."""
    (tmp_path / "data.py").write_text("table = torch.ones(3).cuda()\n")
    (tmp_path / "train.py").write_text("from data import table\ntable[0]\n")
    step = Step(1, INITIALISED, "torch.Tensor.cuda", Site(str(tmp_path / "data.py"), 1, "<module>"), None, 0.0)
    (found,) = _provenance.of(Site(str(tmp_path / "train.py"), 2, "f"), None, [step])
    assert (Path(found.file).name, found.line, found.function) == ("data.py", 1, "<module>")


HELD = """
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.zeros(1, device="cuda")  # what starts CUDA makes nothing that the workers use
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Table(Dataset):
    def __init__(self):
        self.table = torch.arange(16.0).to(device)

    def __len__(self):
        return 16

    def __getitem__(self, i):
        return self.table[i], i


rows = torch.arange(16.0).to(device)
labels = torch.arange(16, device=device)

if __name__ == "__main__":
    total = 0.0
    for x, y in DataLoader(CHOSEN, batch_size=4, num_workers=1, timeout=60):
        x = x.to(device)
        assert x.is_cuda
        total += x.sum().item()
    print("total", total)
"""


@pytest.mark.parametrize(("chosen", "lines"), [("Table()", 1), ("TensorDataset(rows, labels)", 2)])
def test_the_first_fix_pasted_in_as_it_stands_makes_the_script_pass(chosen: str, lines: int, program: Program) -> None:
    """At the lines that it names, with the words that it gives."""
    text = HELD.replace("CHOSEN", chosen)
    broken = program(text)
    assert broken.code == 1 and "[inherited-tensor]" in broken.err
    head, *pasted = re.findall(r"^  fix  (.*)\n" + r"           (.*)\n" * lines, broken.err, re.M)[-1]
    assert head.startswith(f"Keep the dataset on the CPU, {broken.script.name}:")
    rows = broken.script.read_text().splitlines()
    for number, line in zip((int(number) - 1 for number in re.findall(r"\.py:(\d+)", head)), pasted, strict=True):
        rows[number] = rows[number][: -len(rows[number].lstrip())] + line
    fixed = program("\n".join(rows)).ok()
    assert (fixed.out, fixed.err) == ("total 120.0\n", "")


def test_what_is_rerouted_is_told_with_the_line_that_made_it(program: Program) -> None:
    """The line that uses the data needs no change."""
    done = program(HELD.replace("CHOSEN", "Table()"), mode="reroute").ok()
    assert done.out == "total 120.0\n"
    assert f"For good: write `self.table = torch.arange(16.0)` at {done.script.name}:" in done.err
