"""`doctor`: what is on, what is watched, and what in this environment matters."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from . import facts as looking
from . import terminal
from .facts import Facts

WIDTH = 30  # characters, of the labels


class Doctor:
    """Say what is on, what is watched, and what in this environment matters. It never initialises CUDA."""

    options: tuple[str, ...] | None = None

    def prepare(self, parser: argparse.ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("--json", action="store_true", help="as one JSON object, for other programs")

    def run(self, args: argparse.Namespace) -> None:
        """Look, and tell."""
        facts = looking.collect()
        told = notes(facts)
        terminal.show(json.dumps({**facts, "notes": told}, indent=2) if args.json else text(facts, told))


def text(facts: dict[str, Facts], told: list[str]) -> str:
    """The facts as a person reads them, and the notes after them."""
    parts: list[str] = []
    for title, rows in SECTIONS:
        parts += [terminal.heading(title), *(row for label, say in rows for row in _row(label, say(facts))), ""]
    parts += [terminal.heading("Notes"), *(_row(terminal.warning("!"), note, 1)[0] for note in told)] if told else ["Nothing to remark."]
    return "\n".join(parts)


def _row(label: str, value: str | list[str], width: int = WIDTH) -> list[str]:
    first, *rest = [value] if isinstance(value, str) else value or ["none"]
    return [f"  {label:<{width}}  {first}", *(f"  {'':<{width}}  {line}" for line in rest)]


def _torch(facts: dict[str, Facts]) -> str:
    versions = facts["versions"]
    if versions["torch"] is None:
        return f"cannot be imported: {versions['torch error']}"
    build = f"CUDA {versions['cuda build']}" if versions["cuda build"] else f"ROCm {versions['hip build']}" if versions["hip build"] else "CPU"
    return f"{versions['torch']} ({build} build)"


def _mode(facts: dict[str, Facts]) -> str:
    guard = facts["guard"]
    return guard["mode"] if guard["built"] else f"{guard['mode']} (not built yet: acts as error)"


def _came_on(facts: dict[str, Facts]) -> str:
    guard, variable = facts["guard"], facts["guard"]["CUDAGUARD"]
    if variable is None:
        return "by import: CUDAGUARD is not set" if guard["mode"] != "off" else "not on"
    by = ", by the start-up file" if guard["start-up file ran"] else ""
    return f"CUDAGUARD={variable}{by}" if guard["mode"] != "off" else f"not on: CUDAGUARD={variable}"


def _driver(facts: dict[str, Facts]) -> str:
    driver = facts["driver"]
    state = "up" if driver["up"] else "not up" if driver["can be asked"] else "cannot be asked on this system"
    return f"{state} (simulated)" if driver["simulated"] else state


def _loaders(facts: dict[str, Facts]) -> str:
    method = facts["processes"]["default start method"]
    meaning = "workers cannot use CUDA once this process has woken it" if method == "fork" else "workers may use CUDA, and each pays for a context"
    return f"{method}, unless multiprocessing_context says otherwise: {meaning}"


def _plain(section: str, name: str, missing: str = "not set") -> Callable[[dict[str, Facts]], Any]:
    """Say a fact as it is."""
    return lambda facts: missing if facts[section][name] is None else facts[section][name]


Row = tuple[str, Callable[[dict[str, Facts]], Any]]
SECTIONS: tuple[tuple[str, tuple[Row, ...]], ...] = (
    (
        "Versions",
        (
            ("cudaguard", _plain("versions", "cudaguard")),
            ("python", lambda facts: f"{facts['versions']['python']} ({facts['versions']['executable']})"),
            ("torch", _torch),
            ("wrapt", _plain("versions", "wrapt", "not installed")),
        ),
    ),
    (
        "Guard",
        (
            ("mode", _mode),
            ("came on", _came_on),
            ("start-up file", _plain("guard", "start-up file")),
            ("report", _plain("guard", "report", "not written")),
            ("trace", _plain("guard", "trace", "not written")),
            ("ignored", _plain("guard", "ignored", "nothing")),
            ("simulated devices", _plain("guard", "simulate", "none")),
            ("not writable", _plain("guard", "not writable")),
            ("patched", _plain("hooks", "patched")),
            ("not watched", _plain("hooks", "not watched")),
        ),
    ),
    ("CUDA", (("driver", _driver), ("device files", _plain("driver", "device files")))),
    ("Processes", (("multiprocessing", _plain("processes", "default start method")), ("DataLoader", _loaders))),
    ("Environment", tuple((name, _plain("environment", name)) for name in looking.VARIABLES)),
    ("System", (("system", lambda facts: f"{facts['platform']['system']} {facts['platform']['release']}"),)),
)

SHARING = "CUDA tensors cannot be sent between processes on Windows, and on WSL not in every case: send CPU tensors and move them where they arrive"
# Each is shown where its condition holds. Order is that of importance.
NOTES: tuple[tuple[Callable[[dict[str, Facts]], Any], str], ...] = (
    (lambda f: f["guard"]["stepped aside"], "the guard failed inside and watches nothing now: see explain internal"),
    (lambda f: f["driver"]["woken by importing torch"], "importing torch woke the CUDA driver: what is forked after that import cannot use CUDA"),
    (lambda f: not f["guard"]["built"], "this mode is not built yet: the guard acts as in mode error"),
    (
        lambda f: f["guard"]["CUDAGUARD"] is not None and not f["guard"]["start-up file"],
        "CUDAGUARD is set but there is no start-up file in a site folder: only programs that import cudaguard, or python -m cudaguard, are guarded",
    ),
    (lambda f: f["guard"]["not writable"], "the report or the trace cannot be written where it is to be"),
    (lambda f: f["versions"]["torch"] is None, "torch cannot be imported here: there is nothing to guard"),
    (lambda f: f["hooks"]["not watched"], "this release of torch lacks some names that the guard knows: what goes through them is not seen"),
    (lambda f: f["versions"]["hip build"], "this is a ROCm build: the driver probe knows CUDA only, so only what goes through torch is seen"),
    (lambda f: f["platform"]["system"] == "Darwin", "macOS has no CUDA: the driver is not watched, only torch's own functions are"),
    (
        lambda f: f["platform"]["system"] == "Windows",
        "Windows has no fork: the driver and forks are not watched, only torch's own functions and spawned children are",
    ),
    (lambda f: f["platform"]["system"] == "Windows" or f["platform"]["wsl"], SHARING),
    (
        lambda f: f["environment"]["expandable segments"],
        "expandable segments are on: CUDA tensors then cross processes by pidfd_getfd, which old kernels lack and many containers refuse; "
        "see explain ipc-broken",
    ),
    (
        lambda f: f["environment"]["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1",
        "torch.cuda.is_available() asks NVML and does not wake the driver: children forked after it may use CUDA",
    ),
    (
        lambda f: f["environment"]["PYTORCH_NVML_BASED_CUDA_CHECK"] not in (None, "1"),
        "PYTORCH_NVML_BASED_CUDA_CHECK counts only if it is 1",
    ),
    (lambda f: f["environment"]["CUDA_VISIBLE_DEVICES"] in ("", "-1"), "CUDA_VISIBLE_DEVICES hides every GPU"),
    (
        lambda f: "MIG-" in (f["environment"]["CUDA_VISIBLE_DEVICES"] or ""),
        "with MIG devices torch.cuda.device_count() may have to ask the driver, and so wake it",
    ),
)


def notes(facts: dict[str, Facts]) -> list[str]:
    """What a person should know about these facts."""
    return [words for holds, words in NOTES if holds(facts)]


COMMAND = Doctor()
