"""Choose and word the fixes. Pure: a table of cases, first match first, at most three.

Advice names the user's own files, lines and variables, and is written so that it can be pasted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from . import _places, _provenance, _rewrite, _source
from ._journal import DRIVER, INITIALISED, QUERIED, Step
from ._places import Frame, Site

LOADERS = {"dataloader", "stateful-dataloader"}
POOLS = {"pool", "executor", "joblib"}
CROSSINGS = {"unsendable-output", "pin-cuda-output", "ipc-broken"}  # no fork is to blame
SENT_ON = "received from another process"  # of what torch says where a tensor is sent on
SERVERS = {"gunicorn", "celery", "c-fork"}
MOST = 3


class Advice(NamedTuple):
    """One fix: a stable id, and the words."""

    id: str
    text: str


class Case(NamedTuple):
    """What the choice of a fix depends on."""

    slug: str
    maker: str | None
    start_method: str | None
    tier: str | None
    origin: Step | None
    fork: Site | None
    touch: Site | None
    call: str
    default_method: str | None
    notebook: bool
    spawn_works: bool  # as far as the program goes: its main module has a guard, what a child needs pickles, no notebook
    said: str = ""
    detail: str = ""
    steps: tuple[Step, ...] = ()  # every step up before the fork; the origin is the first
    default_device: bool = False  # whether a default device or tensor type puts tensors on the GPU that name none

    @property
    def code(self) -> str:
        """The statement of the touch."""
        return _code(self.touch)

    @property
    def made(self) -> list[Site]:
        """The statements that put on the GPU what the child inherited and uses, as far as the source tells."""
        if self.slug in CROSSINGS:
            return []
        return _provenance.of(self.touch, self.fork, self.steps)

    @property
    def used(self) -> list[Site]:
        """The same for what the line of the touch uses, where that makes something on the GPU besides."""
        return [site for site in _provenance.of(self.touch, self.fork, self.steps, forked=False) if self.touch and site.line != self.touch.line]

    @property
    def by_default(self) -> bool:
        """Whether the default device is to blame: the statement of the touch does not say itself that something goes to the GPU."""
        return self.default_device and _rewrite.without_cuda(self.code, self.call) == self.code

    @property
    def spawnable(self) -> bool:
        """Whether the program could follow an advice to spawn."""
        return self.spawn_works and self.maker not in SERVERS

    @property
    def only_queried(self) -> bool:
        """Whether the parent did no more than ask, as is_available() does."""
        return self.tier == QUERIED and self.origin is not None and "is_available" in (self.origin.cause or self.origin.call)

    @property
    def imported(self) -> bool:
        """Whether an import woke CUDA, and no line after it went further."""
        return self.origin is not None and self.origin.imported and not self.went_on

    @property
    def went_on(self) -> bool:
        """Whether another line than the first started CUDA: then to mend the first mends nothing."""
        first = self.origin.site if self.origin else None
        return any(step.tier == INITIALISED and first and step.site[:2] != first[:2] for step in self.steps)


def choose(case: Case) -> tuple[Advice, ...]:
    """The fixes for a case, the best one here first."""
    ids = [name for name, fits in TABLES.get(case.slug, TABLE) if fits(case)]
    return tuple(Advice(name, WORDS[name](case)) for name in dict.fromkeys(ids))[:MOST]


def _loader(case: Case) -> bool:
    return case.maker in LOADERS and case.slug not in CROSSINGS


def _resent(case: Case) -> bool:
    """Whether a CUDA tensor that came from one process was sent on to another."""
    return case.slug in CROSSINGS and SENT_ON in case.said


UNPICKLED = "torch.storage._load_from_bytes"  # what pickle calls for a tensor that was saved on a GPU
LOADS = ("torch.load", "torch.jit.load", UNPICKLED)
# What asks the GPU or waits for it: nothing of a batch comes from there. What chooses where data goes (set_device, Stream) is not meant.
ASKS = re.compile(
    r"torch\.cuda\.(get_(?!device_module)|mem|max_|reset_|is_|synchronize|empty_cache|ipc_collect|utilization|temperature|power_draw|clock_rate)"
    r"|torch\.random\.fork_rng|torch\.accelerator\.(synchronize|current_|get_|memory|max_|is_)"
)
RAGGED = re.compile(r"\bnested_tensor\b|\bas_nested_tensor\b|\bpad_sequence\b|\bpack_sequence\b")
RECEIVES = os.path.join("torch", "multiprocessing", "reductions.py")  # where a process builds what it was sent
PINS = ("torch.Tensor.pin_memory",)
CHOOSES = re.compile(r"torch\.cuda\.(set_|current_|default_|device$|device_of$|stream$|Stream$|Event$|init$)|torch\.accelerator\.set_")

# Order is preference. A row fits or not by the facts of the case alone.
TABLE: tuple[tuple[str, Callable[[Case], bool]], ...] = (
    ("detach", lambda c: c.slug == "unsendable-output" and "requires" in c.said),
    ("copy-dataset-to-cpu", lambda c: _resent(c) and "Nested" in c.detail),
    ("clone-before-send", lambda c: _resent(c)),
    ("cpu-worker", lambda c: c.slug in ("pin-cuda-output", "ipc-broken")),
    ("move-in-parent", lambda c: c.slug in ("pin-cuda-output", "ipc-broken")),
    ("server-hook", lambda c: c.maker in SERVERS and c.slug not in CROSSINGS),
    ("late-init", lambda c: c.start_method == "forkserver" and c.slug not in CROSSINGS),
    ("copy-dataset-to-cpu", lambda c: c.slug == "inherited-tensor" and _loader(c)),
    ("map-location", lambda c: c.call in LOADS),
    ("set-default-device", lambda c: _loader(c) and c.slug == "fork-after-init" and c.by_default),
    ("spawn-context", lambda c: _loader(c) and c.default_method in ("spawn", "forkserver") and c.spawnable),
    ("driver-import", lambda c: c.imported),
    ("cpu-worker", lambda c: _loader(c) and c.slug == "fork-after-init" and c.call not in LOADS and not c.by_default),
    ("move-in-parent", lambda c: _loader(c) and c.slug == "fork-after-init" and not (ASKS.match(c.call) or c.call in PINS)),
    ("nested-collate", lambda c: _loader(c) and c.slug == "fork-after-init" and bool(RAGGED.search(c.code))),
    ("nvml-check", lambda c: c.only_queried and c.slug not in CROSSINGS),
    ("late-init", lambda c: c.maker in {"os.fork", "subprocess"} or (c.maker == "process" and c.tier == DRIVER and c.slug == "fork-after-init")),
    ("pool-spawn", lambda c: c.maker in POOLS and c.spawnable and c.slug not in CROSSINGS),
    ("spawn-context", lambda c: c.maker in {"process", "datasets", "lightning"} and c.spawnable and c.slug not in CROSSINGS),
    ("restart-kernel", lambda c: c.notebook and c.slug not in CROSSINGS),
    ("late-init", lambda c: c.origin is not None and c.slug not in CROSSINGS and c.maker not in LOADERS),
    ("spawn-context", lambda c: _loader(c) and c.spawnable),
)


# Where initialising CUDA is forbidden no child is to blame, and no start method helps.
TABLES: dict[str, tuple[tuple[str, Callable[[Case], bool]], ...]] = {
    "forbidden-init": (("driver-import", lambda c: c.imported), ("late-init", lambda c: not c.imported)),
}


def _where(site: Site | None) -> str:
    if site and site.cell:
        return f"{site.cell}, line {site.line}"
    return f"{_name(site.file)}:{site.line}" if site else "the line"


def _name(file: str) -> str:
    """A file's name; of a package's `__init__.py` with the package's."""
    folder, name = os.path.split(file)
    return os.path.join(os.path.basename(folder), name) if name == "__init__.py" else name


def _there(site: Site | None) -> str:
    """A place to add to a sentence, if it is a line of the user's: a pool forks new workers from a thread of its own."""
    return f", {_where(site)}" if site and _theirs(site) else ""


def _lines(*lines: str) -> str:
    return "\n".join(lines)


def _code(site: Site | None) -> str:
    return _source.statement(site.file, site.line) if site else ""


def _library_line(site: Site | None) -> Site | None:
    """The innermost line of a library that a place led to, or that is the place."""
    inner = [frame for frame in site.stack if _places.kind(frame.file) == _places.LIBRARY] if site else []
    return _at(inner[-1]) if inner else None


def _paste(head: str, code: str) -> str:
    return _lines(head, *(f"    {line}" for line in code.splitlines()))


def _cpu_worker(case: Case) -> str:
    if case.slug in CROSSINGS:
        return "Return CPU tensors from the worker: leave out .cuda() and .to(device) there."
    if ASKS.match(case.call):
        return f"Leave {_where(case.touch)} out of the worker: it makes no data. Ask in the main process, and hand the answer over."
    if case.touch and case.touch.file.endswith(RECEIVES):
        return "What the main process sends to the worker is on the GPU: let the sampler give plain numbers, as .tolist() does."
    if CHOOSES.match(case.call):
        return f"Leave {_where(case.touch)} out of the worker: one that stays on the CPU has no GPU to choose."
    if case.call in PINS:
        return f"Leave {_where(case.touch)} out of the worker: DataLoader(..., pin_memory=True) pins in the main process."
    kept = _rewrite.without_cuda(case.code, case.call)
    inner = _library_line(case.touch)
    if inner and (kept == case.code or _places.library(case.touch or inner)):
        return _of_a_library(_where(inner), case.made)
    if kept == case.code:
        return f"Let the worker stay on the CPU: take what {_where(case.touch)} needs from the GPU out of the dataset."
    if _rewrite.does_nothing(kept):
        return f"Stay on the CPU in the worker: delete {_where(case.touch)}."
    built = _paste(f"Build it on the CPU in the worker, {_where(case.touch)}:", kept)
    return _lines(built, _paste(f"and what it uses, {_list(used)}:", _on_cpu(used))) if (used := case.used) else built


def _of_a_library(where: str, made: list[Site]) -> str:
    head = f"{where}, in a library, goes to the GPU."
    if not made:
        return f"{head} Look for its device option, or do that part after the loader."
    return _paste(f"{head} If {_list(made)} tells it to, leave that out there:", _on_cpu(made))


def _set_default_device(case: Case) -> str:
    return _lines(
        f"{_where(case.touch)} names no device: the default one is the GPU, in the worker too. Set it back there:",
        '    DataLoader(..., worker_init_fn=lambda worker_id: torch.set_default_device("cpu"))',
    )


def _nested_collate(case: Case) -> str:
    return _lines(
        "Samples of different lengths: return them from the dataset as they are, on the CPU, and let the loader collate them:",
        "    DataLoader(..., collate_fn=cudaguard.collate.nested)  # or cudaguard.collate.pad_and_mask",
    )


# Who takes the batches out of the loader for the user, by a part of the path of its files.
MOVES_BATCHES = {
    f"{os.sep}lightning{os.sep}": "Lightning",
    f"{os.sep}pytorch_lightning{os.sep}": "Lightning",
    f"{os.sep}transformers{os.sep}trainer": "The Trainer of transformers",
    f"{os.sep}accelerate{os.sep}": "Accelerate",
    f"{os.sep}fastai{os.sep}": "fastai",
}


NO_TENSOR = "  # if it is a tensor"  # what a loop binds besides the data may be a name, a list of texts


def mover(fork: Site | None) -> str:
    """What moves the batches of a loader to the GPU, if the user's own loop does not; else ""."""
    files = [frame.file for frame in fork.stack if _places.kind(frame.file) == _places.LIBRARY] if fork else []
    return next((name for part, name in MOVES_BATCHES.items() for file in files if part in file), "")


def _move_in_parent(case: Case) -> str:
    device = _rewrite.device(case.code)
    if case.fork is None:
        return _lines("Move it in the process that uses it:", f"    x = x.to({device}, non_blocking=True)")
    if mover(case.fork):
        return f"{mover(case.fork)} moves each batch to the GPU by itself: nothing else is to be done."
    code = _code(case.fork)
    targets = _rewrite.loop_targets(code)
    if not targets:  # somebody else's loop, or a list(...)
        place = f"Move each batch in the main process, where it comes out of {_where(case.fork)}:"
        return _lines(place, f"    batch = batch.to({device}, non_blocking=True)")
    remark = "  # or each tensor in it" if len(targets) == 1 else ""
    moves = "".join(f"\n    {name} = {name}.to({device}, non_blocking=True){remark if n == 0 else NO_TENSOR}" for n, name in enumerate(targets))
    return _paste(f"Move each batch in the main process, {_where(case.fork)}:", code + moves)


def _copy_dataset(case: Case) -> str:
    moved = f"{mover(case.fork)} moves the batches." if mover(case.fork) else "and move each batch after the loader."
    last = f"{moved} Or use num_workers=0: data that is on the GPU already needs no workers."
    made = case.made
    if not made:
        used = f" what {_where(case.touch)} uses" if case.touch and _theirs(case.touch) and case.slug not in CROSSINGS else " the dataset"
        return f"Keep{used} on the CPU, {last}"
    return _lines(_paste(f"Keep the dataset on the CPU, {_list(made)}:", _on_cpu(made)), last)


def _on_cpu(made: list[Site]) -> str:
    return "\n".join(_provenance.on_cpu(site) or f"# without {_code(site)}" for site in made[:MOST])


def _list(sites: Iterable[Site]) -> str:
    names = list(dict.fromkeys(map(_where, sites)))
    more = f", and {len(names) - MOST} more" if len(names) > MOST else ""
    return (", ".join(names[:MOST]) if more else " and ".join(names)) + more


def _map_location(case: Case) -> str:
    where = _where(case.touch)
    if case.call == UNPICKLED:
        way = 'torch.save and torch.load(..., map_location="cpu")'
        return f"pickle cannot be told a device, {where}: save what is on the CPU (.cpu()), or use {way}."
    mapped = _rewrite.with_map_location(case.code)
    if mapped == case.code:  # a library's function does it
        return f'{where} leads to {case.call}, which needs map_location="cpu" in a worker: look for that option, or load in the main process.'
    return _paste(f"Load to the CPU in the worker, {where}:", mapped)


def _late_init(case: Case) -> str:
    if case.slug == "forbidden-init":
        return f"Ask for CUDA later: move {_where(case.touch)} into the function that needs the GPU."
    if case.start_method == "forkserver":
        return f"Take CUDA out of what the fork server preloads ({_where(case.origin.site if case.origin else None)}): its children inherit it."
    if case.origin and case.origin.between:
        down, up = case.origin.between
        return f"Something wakes CUDA between {_where(down)} and {_where(up)}: do that after {_where(case.fork)}, or in the child."
    body = case.origin.site.importer if case.origin else None
    if body and case.origin:
        after = f"after {_where(case.fork)}" if case.fork and _theirs(case.fork) else "after the fork"
        where = _where(case.origin.site)
        return f"{where} runs when {_where(_at(body))} imports it: put it into a function, and call that {after} or in the child."
    places = [_movable(step.site, case.fork) for step in case.steps or (case.origin,) if step]
    which = _list(place for place, _ in places) or "the line"
    if case.slug == "inherited-tensor":  # below the fork alone, the child would not have it
        which = _list([*(place for place, _ in places), *case.made]) or which
        return f"Make it in the process that uses it: move {which} into the child. Or give the child a copy on the CPU (.cpu())."
    if case.fork is None:
        return f"Initialise CUDA in the child: move {which} below the fork."
    below = next((fork for _, fork in places if fork), case.fork)
    if not _theirs(below):
        return f"Move {which} below the line that makes the children, so that they are forked first."
    return f"Move {which} below {_where(below)}, so that the child is forked first."


def _theirs(site: Site) -> bool:
    """Whether a place is a line of the user's."""
    return not _places.library(site)


def _movable(site: Site, fork: Site | None) -> tuple[Site, Site | None]:
    """The lines to exchange so that a fork comes before a step: where both stacks part, if that is in one function.

    A line inside a function that the program calls first cannot be moved below one in another: the calls can.
    """
    pairs = zip(site.stack, fork.stack if fork else (), strict=False)
    parted = next(((a, b) for a, b in pairs if a[:3] != b[:3]), None)
    if parted is None or parted[0].line == parted[1].line or not _same_function(*parted):
        return site, fork
    return _at(parted[0]), _at(parted[1])


def _same_function(one: Frame, other: Frame) -> bool:
    return (one.file, one.function) == (other.file, other.function) and _places.kind(one.file) == _places.USER


def _at(frame: Frame) -> Site:
    return Site(frame.file, frame.line, frame.function, cell=_places.cell(frame.file))


SWITCH = "PYTORCH_NVML_BASED_CUDA_CHECK=1 python ..."


def _nvml_check(case: Case) -> str:
    return _lines(
        f"{_where(case.origin.site if case.origin else None)} only asks whether there is a GPU. Let it ask without waking CUDA:",
        f"    {SWITCH}",
    )


def _driver_import(case: Case) -> str:
    site = case.origin.site if case.origin else None
    inner = site.importing if site else None
    via = f" ({_where(_at(inner))} does it)" if inner else ""
    where = "where the GPU is needed" if case.slug == "forbidden-init" else "after the workers are made, or inside the child"
    asked = "asks for the GPU" if case.tier == QUERIED else "initialises CUDA"
    switch = _lines("", "Or let it ask without waking CUDA:", f"    {SWITCH}") if case.only_queried and case.slug != "forbidden-init" else ""
    return f"Importing {asked} at {_where(site)}{via}: do that import {where}.{switch}"


def _spawn_context(case: Case) -> str:
    if case.maker in LOADERS and case.default_method in ("spawn", "forkserver"):
        return _lines(
            f"The program's start method is {case.default_method!r}, but this loader was given fork. Drop that argument, or:",
            f'    DataLoader(..., multiprocessing_context="{case.default_method}")',
        )
    price = "Each child then starts anew: seconds, and hundreds of MB of GPU memory."
    if case.maker in LOADERS:
        return _lines("Start the workers without fork:", '    DataLoader(..., multiprocessing_context="spawn")', price)
    if case.maker == "datasets":
        return _lines("Start the workers without fork, before map():", '    import multiprocess; multiprocess.set_start_method("spawn")', price)
    code = 'Trainer(..., strategy="ddp")' if case.maker == "lightning" else 'multiprocessing.get_context("spawn").Process(...)'
    return _lines(f"Start the child without fork{_there(case.fork)}:", f"    {code}", price)


def _pool_spawn(case: Case) -> str:
    code = {
        "executor": 'ProcessPoolExecutor(..., mp_context=multiprocessing.get_context("spawn"))',
        "joblib": 'Parallel(..., backend="loky")',
    }.get(case.maker or "", 'multiprocessing.get_context("spawn").Pool(...)')
    return _lines(f"Start the pool without fork{_there(case.fork)}:", f"    {code}")


def _server_hook(case: Case) -> str:
    hook = {
        "gunicorn": "into gunicorn's post_fork or post_worker_init hook, or drop --preload (preload_app)",
        "celery": "into a handler of celery.signals.worker_process_init, or use --pool=solo",
    }.get(case.maker or "", "behind the server's fork (uWSGI: @uwsgidecorators.postfork, or lazy-apps = true)")
    return f"Load the model in each worker, not before the fork: move {_where(case.origin.site if case.origin else None)} {hook}."


def _detach(case: Case) -> str:
    return _lines("Send the values without their graph:", "    return x.detach()")


def _clone(case: Case) -> str:
    return _lines(f"Send a copy of your own, {case.detail or 'the tensor'} came from another process:", "    return x.clone()")


def _restart(case: Case) -> str:
    woke, made = case.origin.site.cell if case.origin else None, case.fork.cell if case.fork else None
    if made and woke and woke != made:
        order = f"run {made} (it makes the workers) before {woke} (it starts CUDA)."
    elif made and woke:
        order = f"split {made}: make the workers in a cell before the one that starts CUDA."
    else:
        order = f"import cudaguard first, and run {made or 'the cells that make workers'} before the first cell that uses CUDA."
    lines = ["CUDA cannot be stopped again in a running kernel. Restart it, then", f"    {order}"]
    return _lines(*lines, *(["Or keep it, and let cudaguard move the batches: %cudaguard reroute"] if _loader(case) else []))


WORDS: dict[str, Callable[[Case], str]] = {
    "cpu-worker": _cpu_worker,
    "move-in-parent": _move_in_parent,
    "copy-dataset-to-cpu": _copy_dataset,
    "map-location": _map_location,
    "set-default-device": _set_default_device,
    "nested-collate": _nested_collate,
    "late-init": _late_init,
    "nvml-check": _nvml_check,
    "driver-import": _driver_import,
    "spawn-context": _spawn_context,
    "pool-spawn": _pool_spawn,
    "server-hook": _server_hook,
    "restart-kernel": _restart,
    "detach": _detach,
    "clone-before-send": _clone,
}
