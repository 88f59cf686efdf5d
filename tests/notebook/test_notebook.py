"""In a real kernel: cells are named, advice fits a notebook, errors and reports are readable."""

from __future__ import annotations

from pathlib import Path

import nbformat

STORY = Path(__file__).resolve().parents[2] / "examples" / "story.ipynb"

DATA = """\
import torch
from torch.utils.data import DataLoader

class Data:
    def __len__(self): return 2
    def __getitem__(self, i):
        return torch.ones(1).to("cuda")
"""
LOOP = "loader = DataLoader(Data(), num_workers=1)\nfor batch in loader:\n    pass"
SHOW = """\
import cudaguard
finding = cudaguard.report().findings[-1]
print([(finding[name]["cell"], finding[name]["line"], finding[name]["code"]) for name in ("origin", "fork", "touch")])
print([advice["id"] for advice in finding["advice"]])
"""


def test_an_error_names_cells_and_lines_and_how_to_go_on(run):
    told = run("%load_ext cudaguard", DATA, "x = 1\nmodel = torch.nn.Linear(1, 1).cuda()", LOOP, SHOW)
    error = told.error(3)
    assert error.startswith("CudaForkError raised at\n  In [4], line 2")
    for place in ("started     In [3], line 2 ", "forked      In [4], line 2 ", "touched     In [2], line 7, in __getitem__"):
        assert place in error, error
    assert "model = torch.nn.Linear(1, 1).cuda()" in error
    assert "Stay on the CPU in the worker" in error or "Build it on the CPU in the worker, In [2], line 7" in error
    assert "run In [4] (it makes the workers) before In [3] (it starts CUDA)." in error
    assert "%cudaguard reroute" in error
    assert "spawn is no way out in a notebook" in error
    assert "multiprocessing_context" not in error
    assert "site-packages" not in error  # no frames of loaders
    assert "ipykernel_" not in error
    places, advice = told.text(4).strip().splitlines()
    assert places == str(
        [
            ("In [3]", 2, "model = torch.nn.Linear(1, 1).cuda()"),
            ("In [4]", 2, "for batch in loader:"),
            ("In [2]", 7, 'return torch.ones(1).to("cuda")'),
        ]
    )
    assert "restart-kernel" in advice


def test_a_cell_keeps_its_number_and_source_when_it_is_run_again(run):
    start = "torch.ones(1).cuda()"
    told = run("import cudaguard", DATA, start, start, "# edited\n\n\n" + start, LOOP, SHOW)
    assert "('In [3]', 1, 'torch.ones(1).cuda()')" in told.text(6)
    assert "In [3], line 1" in told.error(5)


def test_data_that_a_loader_holds_is_found_in_the_cell_that_made_it(run):
    """Each cell is a file of its own: the name is looked for in all of them, and the last cell that binds it counts."""
    cells = run(
        "%load_ext cudaguard\nimport torch\nfrom torch.utils.data import DataLoader, TensorDataset\ntorch.ones(1).cuda()",
        "x = torch.zeros(8).cuda()",
        "x = torch.ones(8).cuda()",
        "loader = DataLoader(TensorDataset(x), batch_size=4, num_workers=1)",
        "for batch in loader: pass",
    )
    assert "Keep the dataset on the CPU, In [3], line 1:\n           x = torch.ones(8)\n" in cells.error(4)


def test_the_report_is_html_in_a_notebook_and_plain_elsewhere(run):
    told = run("import cudaguard\ncudaguard.report()", DATA, "torch.ones(1).cuda()", LOOP, "cudaguard.report()", "print(cudaguard.report())")
    assert "no findings" in told.html(0)
    html = told.html(4)
    assert "<code" in html
    assert "fork-after-init" in html
    assert "In [2], line 7" in html
    assert "return torch.ones(1).to(&quot;cuda&quot;)" in html
    assert "<style" not in html
    assert "<" not in told.text(5).replace("<module>", "")


def test_status_and_modes(run):
    told = run(
        "%load_ext cudaguard",
        "%cudaguard",
        "import torch\ntorch.cuda.is_available()",
        "%cudaguard warn",
        "%cudaguard nonsense",
        "%cudaguard off",
    )
    assert "mode      error" in told.text(1)
    assert "CUDA      not up" in told.text(1)
    assert "<table" in told.html(1)
    assert "mode      warn" in told.text(3)
    assert "queried, first by In [3], line 2: torch.cuda.is_available" in told.text(3)
    assert "forked from now on cannot use CUDA" in told.text(3)
    assert "mode 'nonsense' is not known; legal: off, record" in told.text(4)
    assert "mode      off" in told.text(5)


def test_trace_tells_of_one_cell(run):
    told = run(
        "%load_ext cudaguard",
        "import torch",
        "%%cudaguard_trace\nx = 1\nx = torch.ones(1).cuda()",
        "x.device.type",
        "%%cudaguard_trace\ntorch.ones(1).cuda()\nimport os\nif os.fork() == 0: os._exit(0)\nos.wait()\n1 / 0",
        "%cudaguard",
    )
    assert "In [3], line 3" in told.text(2)
    assert "torch initialised CUDA" in told.text(2)
    assert told.text(3) == "'cuda'"
    assert "CUDA was up before this cell: see In [3], line 3" in told.text(4)
    assert "forked       In [5], line 4" in told.text(4)
    assert "not safe" in told.text(4)
    assert "ZeroDivisionError" in told.error(4)
    assert "mode      error" in told.text(5)  # as before


def test_off_wins(run):
    told = run("%load_ext cudaguard", "%cudaguard error", CUDAGUARD="off")
    assert "mode      off" in told.text(1)


def test_the_example_tells_its_story(run):
    notebook = nbformat.read(STORY, 4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    told = run(*(cell.source for cell in notebook.cells if cell.cell_type == "code"))
    assert "In [3], line 2" in told.text(2)
    assert "touched     In [2], line 11" in told.text(3)
    assert "fork-after-init" in told.html(4)
    # Nothing else, as of workers that complain of the first loader's: it must be gone by then.
    assert told.text(5) == "torch.Size([4, 1]) cuda:0\n" * 2
