"""IPython and Jupyter: magics, errors without noise, reports as HTML. IPython is imported here alone, and only when it asks for us.

HTML uses inline styles only, in colours that go with light and dark themes: notebooks drop style sheets from outputs they do not trust.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

from . import _config, _driver, _findings, _journal, _places, _text

if TYPE_CHECKING:
    from .errors import CudaGuardError

MONO = "font-family:var(--jp-code-font-family,monospace);font-size:.92em"
COLOURS = {"error": "#c62828", "warning": "#b26a00", "note": "#546e7a"}
LABELS = (("origin", "woke CUDA"), ("fork", "forked"), ("touch", "touched"))
BOLD, RED, PLAIN = "\033[1m", "\033[31m", "\033[0m"


def load(shell: Any) -> None:
    """Register the magics."""
    shell.register_magic_function(_guard, "line", "cudaguard")
    shell.register_magic_function(_trace, "cell", "cudaguard_trace")


def _guard(line: str) -> Status | None:
    """`%cudaguard`: what is on, and what was seen so far. `%cudaguard MODE`: record, warn, error, reroute, respawn or off."""
    if not line.strip():
        return Status()
    from . import disable, enable

    try:
        if _config.mode(line.strip()) == "off":
            disable()
        else:
            enable(line.strip())
    except _config.ConfigError as error:
        print(f"cudaguard: {error}")
        return None
    return Status()


def _trace(line: str, cell: str) -> Told:
    """`%%cudaguard_trace`: run the cell in mode record, then tell who initialised CUDA first, how far it went, and every fork."""
    from IPython.core.getipython import get_ipython

    shell: Any = get_ipython()
    before = _findings.origin()
    with tempfile.TemporaryDirectory(prefix="cudaguard-") as folder:
        began, started = time.monotonic_ns() // 1000, time.monotonic()
        with _recording(folder):
            result = _run(shell, cell)
        outcome = _outcome(folder, began, time.monotonic() - started)
    told = Told(outcome, before)
    if result.success:
        return told
    shell.display_pub.publish({"text/plain": repr(told), "text/html": told._repr_html_()})
    result.raise_error()
    raise AssertionError("raise_error returned")


@contextmanager
def _recording(folder: str) -> Iterator[None]:
    from . import enable

    with enable("record", report=os.path.join(folder, "report"), trace=os.path.join(folder, "trace")):
        yield


def _run(shell: Any, cell: str) -> Any:
    """Run the cell's body under its own number. Its error is shown once, by whoever runs us."""
    shown, count = shell.showtraceback, shell.execution_count
    shell.showtraceback, shell.execution_count = _nothing, _number(shell, count)
    try:
        return shell.run_cell(_lined(cell), store_history=False)
    finally:
        shell.showtraceback, shell.execution_count = shown, count


def _lined(cell: str) -> str:
    """The body on the lines it has in the notebook: our magic stood on the first. Another magic must stay in front."""
    return cell if cell.lstrip().startswith("%%") else f"#\n{cell}"


def _number(shell: Any, count: int) -> int:
    """The number of the cell that is running: newer releases of IPython have counted on by now."""
    numbers, frame = shell.compile._filename_map, sys._getframe()
    while frame is not None and frame.f_code.co_filename not in numbers:
        frame = frame.f_back  # type: ignore[assignment]
    return count if frame is None else int(numbers[frame.f_code.co_filename])


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _outcome(folder: str, began: int, seconds: float) -> Any:
    from ._cli.watched import Outcome, read_lines

    return Outcome(0, began, seconds, *(read_lines(os.path.join(folder, name)) for name in ("trace", "report")))


class Told:
    """The story of a cell."""

    def __init__(self, outcome: Any, before: _findings.Origin | None) -> None:
        from ._cli import history, story

        already = f"CUDA was up before this cell: see {_spot(before.file, before.line)}" if before else ""
        self.history = history.read(outcome)
        self._text = story.tell(self.history, before=already)

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return f'<pre style="{MONO};line-height:1.35">{escape(self._text)}</pre>'


class Status:
    """What `%cudaguard` shows."""

    def rows(self) -> list[tuple[str, str]]:
        """Labels and values."""
        config, found = _config.current(), _findings.report().findings
        grave = sum(finding["severity"] != "note" for finding in found)
        return [
            ("mode", config.mode),
            ("GPU", _device()),
            ("CUDA", _woke()),
            ("children", "forked from now on may use CUDA" if _findings.fork_safe() else "forked from now on cannot use CUDA"),
            ("findings", f"{grave} (see cudaguard.report())" if grave else "none"),
            *([("report", config.report)] if config.report else []),
        ]

    def __repr__(self) -> str:
        return "\n".join(["cudaguard", *(f"  {label:<9} {value}" for label, value in self.rows())])

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr>{_cell(label, 'opacity:.65;text-align:left')}{_cell(escape(value), 'text-align:left')}</tr>" for label, value in self.rows()
        )
        return f'<div><b>cudaguard</b><table style="margin:.3em 0">{cells}</table></div>'


def _device() -> str:
    if _driver.simulated():
        return "simulated"
    wanted = _config.environ().get("CUDAGUARD_SIMULATE", "0") != "0" and "torch" not in sys.modules
    return "simulated from the import of torch on, if there is no real one" if wanted else "real, if there is one"


def _woke() -> str:
    origin = _findings.origin()
    if origin is None:
        late = _journal.current.late
        return "up before cudaguard came on: nobody saw who woke it" if late else "not up"
    return f"{origin.tier}, first by {_spot(origin.file, origin.line)}{f': {origin.call}' if origin.call else ''}"


def _spot(file: str, line: int) -> str:
    """Where a line is: the step that is meant knows the cell's number of then."""
    cells = {step.site.file: step.site.cell for step in reversed(_journal.current.steps)}
    cell = cells.get(file) or _places.cell(file)
    return f"{cell}, line {line}" if cell else f"{_text.short(file)}:{line}"


def shown(error: CudaGuardError) -> list[str]:
    """An error for IPython: where it came up among the user's own lines, and its text."""
    frames = list(_own(error))
    rows = [f"  {place:<28}  {code}".rstrip() for place, code in frames]
    first, _, rest = str(error).partition("\n")
    return [f"{RED}{type(error).__name__}{PLAIN} raised at", *rows, "", f"{BOLD}{first}{PLAIN}", *rest.splitlines()]


def _own(error: BaseException) -> Iterator[tuple[str, str]]:
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if _places.kind(file) == _places.USER:
            site = _places.Site(file, trace.tb_lineno, trace.tb_frame.f_code.co_name, cell=_places.cell(file))
            yield _text.place(site), site.code
        trace = trace.tb_next


def html(findings: list[dict[str, Any]]) -> str:
    """A report as HTML: a card for each finding."""
    if not findings:
        return '<div style="opacity:.75">cudaguard: no findings.</div>'
    return "".join(_card(finding) for finding in findings)


def _card(finding: dict[str, Any]) -> str:
    colour = COLOURS[str(finding["severity"])]
    head = (
        f'<code style="color:{colour};font-weight:600">{escape(str(finding["slug"]))}</code> &nbsp;{escape(str(finding["message"]).splitlines()[0])}'
    )
    rows = "".join(_place(label, finding[name]) for name, label in LABELS if finding[name])
    fixes = "".join(_fix(advice["text"]) for advice in finding["advice"])
    who = f"{finding['maker'] or 'this process'}, process {finding['pid']}{', simulated GPU' if finding['simulated'] else ''}"
    return (
        f'<div style="border-left:4px solid {colour};padding:.2em .9em;margin:.5em 0">{head}'
        f'<div style="opacity:.65;font-size:.9em">{escape(who)}</div><table style="margin:.4em 0">{rows}</table>{fixes}</div>'
    )


def _place(label: str, site: dict[str, Any]) -> str:
    where = f"{site['cell']}, line {site['line']}" if site["cell"] else f"{_text.short(site['file'])}:{site['line']}"
    code = f'<code style="{MONO}">{escape(site["code"])}</code>'
    cells = (label, "opacity:.65"), (escape(where), "white-space:nowrap"), (code, "")
    return f"<tr>{''.join(_cell(inside, f'text-align:left;{style}') for inside, style in cells)}</tr>"


def _fix(text: str) -> str:
    """Advice: its words, and the indented lines as code."""
    blocks: list[str] = []
    for line in text.split("\n"):
        code = line.startswith("    ")
        blocks.append(f'<div style="{MONO};white-space:pre;padding-left:1.2em">{escape(line[4:])}</div>' if code else f"<div>{escape(line)}</div>")
    return f'<div style="margin:.35em 0">{"".join(blocks)}</div>'


def _cell(inside: str, style: str) -> str:
    return f'<td style="{style}">{inside}</td>'
