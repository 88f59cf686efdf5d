"""The pytest plugin of cudaguard: who initialises CUDA while tests are collected and run.

pytest loads it in every environment that has cudaguard, so it does nothing until it is asked: importing the package turns the guard on, which
is why this file lies outside it. Asked for by `--cudaguard`, `--cudaguard-mode`, an ini option, a marker or the fixture.

    --cudaguard, --cudaguard-mode MODE, ini cudaguard_mode     guard the tests and their children
    ini cudaguard_forbid_collection = true                     collecting, conftest files included, must not initialise CUDA
    @pytest.mark.no_cuda_init(allow_queries=False)             this test must not, its fixtures included
    forbid_cuda_init                                           a fixture that says the same
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import pytest

F = TypeVar("F")


def _no_hook(function: F) -> F:
    """pytest passes over what is not a function."""
    return None  # type: ignore[return-value]


try:
    wrapper: Callable[[F], F] = pytest.hookimpl(wrapper=True)  # type: ignore[assignment]
except TypeError:  # pluggy before 1.2; this file is loaded in every run, so it must not fail
    wrapper = _no_hook


MODE, FORBID = "cudaguard_mode", "cudaguard_forbid_collection"
MARK = "no_cuda_init"
BLOCK = pytest.StashKey[Any]()
OUTPUT = "cudaguard"  # the name under which a worker of pytest-xdist, or a forked test, hands over what it knows


class Story:
    """What is known of CUDA in this run: who woke it first, in each process, and what the guard found."""

    def __init__(self, handle: Any, mode: str) -> None:
        self.handle, self.mode = handle, mode
        self.lines: dict[str, dict[str, str]] = {"first": {}, "found": {}}  # by text, with the process: each is told once

    def look(self, when: str) -> None:
        """Note what is new since the last look, which happened in `when`."""
        import cudaguard
        from cudaguard import _journal
        from cudaguard._hooks import _notice

        _notice.woken()  # C code may have woken the driver: then between the last look and this one
        origin, own = cudaguard.origin(), str(os.getpid())
        here = _journal.current.steps[:1] and _journal.current.steps[0].pid == os.getpid()  # not in the process this one was forked from
        if origin is not None and here and own not in self.lines["first"]:
            self.lines["first"][own] = f"CUDA was first initialised {_during(when, origin)}"
        for finding in cudaguard.report().findings:
            self.lines["found"].setdefault(_line(finding), own)

    def merge(self, other: dict[str, dict[str, str]]) -> None:
        """Take over what another process knows."""
        for name, lines in other.items():
            self.lines[name] = {**lines, **self.lines[name]}

    def told(self) -> list[str]:
        """The lines of the summary."""
        first = list(dict.fromkeys(self.lines["first"].values())) or ["CUDA was not initialised in the processes that ran the tests."]
        return first + list(self.lines["found"])


def _during(when: str, origin: Any) -> str:
    place = f"{_short(origin.file)}:{origin.line}"
    what = f"{origin.call}, {origin.tier}" if origin.call else origin.tier
    doing, _, name = when.partition(" ")
    if doing == "collecting":
        return f"while collecting {place} ({what})" if _short(origin.file) == name else f"while collecting {name}, at {place} ({what})"
    return f"by {name}, at {place} ({what})" if doing == "running" else f"before collection, at {place} ({what})"


def _short(file: str) -> str:
    try:
        short = os.path.relpath(file)
    except ValueError:  # another drive
        return file
    return file if short.startswith("..") else short.replace(os.sep, "/")


def _line(finding: dict[str, Any]) -> str:
    site = finding["touch"] or finding["fork"]
    place = f" ({_short(site['file'])}:{site['line']})" if site else ""
    return f"{finding['severity']}: [{finding['slug']}] {finding['message'].splitlines()[0]}{place}"


_story: Story | None = None


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("cudaguard", "CUDA and processes")
    group.addoption("--cudaguard", action="store_true", help="guard the tests and their children, and tell who first initialised CUDA")
    group.addoption("--cudaguard-mode", metavar="MODE", help="the same, in this mode: record, warn, error, reroute or respawn")
    parser.addini(MODE, "guard the tests in this mode, as --cudaguard-mode does", default="")
    parser.addini(FORBID, "fail what initialises or queries CUDA while it is collected", type="bool", default=False)


@wrapper
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, None, None]:
    """The first conftest files are read here: the guard must be on before."""
    options = early_config.known_args_namespace
    _switch_on(early_config, options)
    with _collecting(early_config):
        yield
    if _story is not None:
        _story.look("loading")


def _switch_on(config: pytest.Config, options: Any) -> None:
    global _story
    mode = options.cudaguard_mode or config.getini(MODE) or None
    if not (options.cudaguard or mode):
        return
    import cudaguard

    try:
        handle = cudaguard.enable(mode)
    except ValueError as error:
        raise pytest.UsageError(f"cudaguard: {error}") from None
    _story = Story(handle, _mode())


def _mode() -> str:
    from cudaguard import _config

    return _config.current().mode


def _forbidden(by: str, allow_queries: bool = False) -> Any:
    """A `forbid_init`, without turning on the rest of the guard where nobody asked for it."""
    asked = "cudaguard" in sys.modules or os.environ.get("CUDAGUARD")
    import cudaguard

    if not asked:
        cudaguard.disable()
    block = cudaguard.forbid_init(allow_queries=allow_queries)
    block.by = by
    return block


def _collecting(config: pytest.Config) -> AbstractContextManager[Any]:
    return _forbidden(FORBID) if config.getini(FORBID) else nullcontext()


def pytest_configure(config: pytest.Config) -> None:
    asked = config.option.cudaguard or config.option.cudaguard_mode or config.getini(MODE) or config.getini(FORBID)
    if asked and pytest_load_initial_conftests is None:
        raise pytest.UsageError("cudaguard: the plugin needs pluggy 1.2 or newer")
    config.addinivalue_line("markers", f"{MARK}(allow_queries=False): the test fails at the line that initialises CUDA, or asks the driver")
    if _story is not None and hasattr(config, "workerinput"):
        config.pluginmanager.register(WorkerEnd(), "cudaguard-worker")


def pytest_unconfigure(config: pytest.Config) -> None:
    global _story
    if _story is not None:
        _story.handle.disable()
        _story = None


def pytest_report_header(config: pytest.Config) -> str | None:
    if _story is None:
        return None
    state = f"on, mode {_story.mode}" if _story.mode != "off" else "off, as CUDAGUARD in the environment says"
    return f"cudaguard: {state}{', simulated devices' if os.environ.get('CUDAGUARD_SIMULATE') else ''}"


@wrapper
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    block = _collecting(collector.config)
    report: Any = None
    try:
        with block:
            report = yield
    except Exception as error:  # at the block's end, where pytest no longer looks for a module's own
        if report is None or type(error).__name__ != "CudaInitError":
            raise
        report.outcome, report.longrepr = "failed", str(error)
    if _story is not None:
        _story.look(f"collecting {collector.nodeid}")
    return report  # type: ignore[no-any-return]


@pytest.fixture
def forbid_cuda_init(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Fail the test at the line that initialises CUDA or asks the driver; the value is the `cudaguard.forbid_init` in force."""
    with _forbidden("The fixture forbid_cuda_init") as block:
        request.node.stash[BLOCK] = block
        yield block


def _swallowed(block: Any) -> None:
    """An error that a thread or an `except` kept from the test is the test's all the same."""
    if block.refused:
        raise block.refused[0]


def _marked(item: pytest.Item) -> Generator[None, Any, Any]:
    mark = item.get_closest_marker(MARK)
    with _forbidden(f"@pytest.mark.{MARK}", **mark.kwargs) if mark else nullcontext() as block:
        result = yield
    for used in filter(None, (block, item.stash.get(BLOCK, None))):
        _swallowed(used)
    return result


@wrapper
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from _marked(item))


@wrapper
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from _marked(item))


@wrapper
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What this process knows travels with the report: from a worker of pytest-xdist, and from a forked test."""
    report = yield
    if _story is not None:
        _story.look(f"running {item.nodeid}")
        setattr(report, OUTPUT, _story.lines)
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if _story is not None:
        _story.merge(getattr(report, OUTPUT, {}))


class WorkerEnd:
    """In a worker of pytest-xdist, whose reports of collection stay there: hand over the rest."""

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if _story is not None:
            session.config.workeroutput[OUTPUT] = _story.lines  # type: ignore[attr-defined]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    if _story is not None:
        _story.merge(getattr(node, "workeroutput", {}).get(OUTPUT, {}))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _story is not None:
        terminalreporter.section("cudaguard")
        for line in _story.told():
            terminalreporter.line(line)
