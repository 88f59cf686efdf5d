"""A program that uses everything the guard hooks, once for each function of the guard's that is made to fail.

Run by test_core_faults.py. Prints a line of JSON for each: the place (`null` for no fault), and what the program itself saw.
Each trial is a forked child of this process, which imports torch once and has not used CUDA.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import json
import multiprocessing
import multiprocessing.spawn
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

PLACES, OUT = [place for place in sys.argv[1].split(",") if place], sys.argv[2]
LONGEST = 60  # seconds a trial may take
torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 0.2  # seconds; how long a loader that failed waits for its workers


class Fault(Exception):
    """Something that should not happen."""


class Touching(Dataset):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> Any:
        return torch.ones(1).cuda()


class Healthy(Dataset):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> Any:
        torch.cuda.is_available()
        return torch.ones(1) * i


class Wrong(Dataset):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, i: int) -> Any:
        raise ValueError("the program's own error")


class Failing(Dataset):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, i: int) -> Any:
        raise RuntimeError("CUDA error: initialization error")


def touch(_: int = 0) -> str:
    return str(torch.ones(1).cuda().device)


def outcome(action: Callable[[], Any]) -> Any:
    """What an action gave: its value, or the kind of its error and the sentence that stock PyTorch has in it."""
    try:
        return action()
    except RuntimeError as error:
        stock = any(sentence in str(error) for sentence in ("Cannot re-initialize CUDA", "CUDA error: initialization error"))
        return [stock or str(error).splitlines()[-1]]
    except Exception as error:
        return [type(error).__name__, str(error).splitlines()[-1]]
    finally:
        gc.collect()  # a failed loader stays alive in its traceback, and its worker with it


def load(dataset: Dataset[Any], **more: Any) -> Any:
    loader = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="fork", timeout=20, **more)
    return [str(item) for item in loader]


def pool() -> Any:
    with multiprocessing.get_context("fork").Pool(1) as workers:
        return workers.map(touch, [0])


def executor() -> Any:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as workers:
        return list(workers.map(touch, [0]))


def forked() -> int:
    pid = os.fork()
    if pid == 0:
        try:
            touch()
        except RuntimeError:
            os._exit(3)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def preparation() -> list[str]:
    return sorted(set(multiprocessing.spawn.get_preparation_data("x")) - {"cudaguard"})


def program() -> list[Any]:
    """A day in the life of a training script."""
    results = [outcome(lambda: load(Healthy())), outcome(preparation), torch.cuda.is_available(), torch.cuda.device_count()]
    sys.modules.pop("this_is_imported_once", None)
    results.append(outcome(lambda: importlib.import_module("colorsys").__name__))
    results += [outcome(touch), outcome(lambda: load(Healthy())), outcome(lambda: load(Touching())), outcome(lambda: load(Wrong()))]
    results.append(outcome(lambda: load(Failing())))
    return [*results, outcome(pool), outcome(executor), outcome(forked), outcome(preparation)]


def places() -> list[str]:
    """What was asked for; `room:*` stands for every function and method that is written in a room."""
    asked = [(place, *place.split(":")) for place in PLACES]
    return [name for place, room, what in asked for name in (_all(room) if what == "*" else [place])]


def _all(room: str) -> list[str]:
    found, module = [], importlib.import_module(f"cudaguard.{room}")
    for name, value in vars(module).items():
        if inspect.isfunction(value) and value.__module__ == module.__name__:
            found.append(f"{room}:{name}")
        if inspect.isclass(value) and value.__module__ == module.__name__ and not issubclass(value, BaseException):
            found += [f"{room}:{name}.{part}" for part, held in vars(value).items() if isinstance(held, property) or _written(held, module)]
    return found


def _written(held: Any, module: Any) -> bool:
    """Whether a method stands in the source: a NamedTuple has others."""
    return inspect.isfunction(held) and held.__code__.co_filename == module.__file__


def break_it(place: str) -> None:
    """Make a function of the guard's fail, wherever it was imported to."""
    room, _, name = place.partition(":")
    holder: Any = importlib.import_module(f"cudaguard.{room}")
    *outer, last = name.split(".")
    for part in outer:
        holder = getattr(holder, part)
    old = vars(holder)[last]

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise Fault(place)

    if getattr(old, "__code__", None) is SAFE:  # the body, not what makes it safe
        next(
            cell for cell in old.__closure__ if inspect.isfunction(cell.cell_contents) and cell.cell_contents is old.__wrapped__
        ).cell_contents = fail
        return
    for module in [m for n, m in list(sys.modules.items()) if n.startswith("cudaguard")]:
        for key, value in list(vars(module).items()):
            if value is old:
                setattr(module, key, fail)
    setattr(holder, last, property(fail) if isinstance(old, property) else fail)


def trial(place: str | None) -> Any:
    """Run the program in a child, with one fault."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        signal.alarm(LONGEST)
        try:
            if place is not None:
                if "cudaguard" in sys.modules:
                    config = sys.modules["cudaguard._config"]
                    config.use(config.current()._replace(report=os.path.join(OUT, place.replace(":", "-"))))
                break_it(place)
            said = json.dumps(program())
        except BaseException as error:
            said = json.dumps(["broke", type(error).__name__, str(error)])
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(said) if said else ["died"]


if __name__ == "__main__":
    if PLACES:
        SAFE = importlib.import_module("cudaguard._respond").safe(None)(touch).__code__
    trials = [None, *places()]
    for place in trials:
        if place is not None:
            importlib.import_module("cudaguard." + place.partition(":")[0])
    gc.freeze()  # what is alive now is not looked at again in each child
    for place in trials:
        print(json.dumps([place, trial(place)]), flush=True)
