"""Every test here runs its cells in a real kernel, in a process of its own, as Jupyter does."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# Of the extra `test`. A conftest may not skip.
NEEDED = ("nbformat", "nbclient", "ipykernel")
collect_ignore_glob = ["test_*.py"] if any(importlib.util.find_spec(name) is None for name in NEEDED) else []

ROOT = str(Path(__file__).resolve().parents[2])
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Cells:
    """The outputs of a notebook that ran."""

    def __init__(self, notebook: Any) -> None:
        self.cells = [cell for cell in notebook.cells if cell.cell_type == "code"]

    def error(self, index: int) -> str:
        """What a cell shows as its error, without colours."""
        errors = [output for output in self.cells[index].outputs if output.output_type == "error"]
        assert len(errors) == 1, self.cells[index].outputs
        return COLOUR.sub("", "\n".join(errors[0].traceback))

    def text(self, index: int) -> str:
        """All plain text of a cell, printed and shown."""
        return "\n".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in self.cells[index].outputs)

    def html(self, index: int) -> str:
        """The HTML of a cell."""
        return "".join(output.get("data", {}).get("text/html", "") for output in self.cells[index].outputs)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Cells]:
    """Run cells in a new kernel; a cell may fail."""

    def execute(*sources: str, **variables: str) -> Cells:
        import nbclient
        import nbformat

        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CUDAGUARD", "_CUDAGUARD"))}
        environ = {**kept, "PYTHONPATH": ROOT, "CUDAGUARD_SIMULATE": "2", **variables}
        client = nbclient.NotebookClient(
            notebook, timeout=200, kernel_name="python3", allow_errors=True, resources={"metadata": {"path": str(tmp_path)}}
        )
        client.execute(env=environ)
        return Cells(notebook)

    return execute
