"""Choose and word the fixes. Pure: a table of cases, first match first, at most three.

Advice names the user's own files, lines and variables, and is written so that it can be pasted.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from typing import NamedTuple

from . import _source
from ._journal import DRIVER, QUERIED, Step
from ._places import Site

LOADERS = {"dataloader", "stateful-dataloader"}
POOLS = {"pool", "executor", "joblib"}
CROSSINGS = {"unsendable-output", "pin-cuda-output", "ipc-broken"}  # no fork is to blame
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

    @property
    def spawnable(self) -> bool:
        """Whether the program could follow an advice to spawn."""
        return self.spawn_works and self.maker not in SERVERS

    @property
    def only_queried(self) -> bool:
        """Whether the parent did no more than ask, as is_available() does."""
        return self.tier == QUERIED and self.origin is not None and self.origin.call.endswith("is_available")

    @property
    def imported(self) -> bool:
        """Whether an import initialised CUDA."""
        return self.origin is not None and self.origin.site.code.startswith(("import ", "from "))


def choose(case: Case) -> tuple[Advice, ...]:
    """The fixes for a case, the best one here first."""
    ids = [name for name, fits in TABLES.get(case.slug, TABLE) if fits(case)]
    return tuple(Advice(name, WORDS[name](case)) for name in dict.fromkeys(ids))[:MOST]


def _loader(case: Case) -> bool:
    return case.maker in LOADERS and case.slug not in CROSSINGS


def _resent(case: Case) -> bool:
    """Whether a CUDA tensor that came from one process was sent on to another."""
    return case.slug in CROSSINGS and "received from another process" in case.said


LOADS = ("torch.load", "torch.jit.load")

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
    ("spawn-context", lambda c: _loader(c) and c.default_method in ("spawn", "forkserver") and c.spawnable),
    ("driver-import", lambda c: c.imported),
    ("cpu-worker", lambda c: _loader(c) and c.slug == "fork-after-init" and c.call not in LOADS),
    ("move-in-parent", lambda c: _loader(c) and c.slug == "fork-after-init"),
    ("nvml-check", lambda c: c.only_queried and c.slug not in CROSSINGS),
    ("late-init", lambda c: c.maker == "os.fork" or (c.maker == "process" and c.tier == DRIVER and c.slug == "fork-after-init")),
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
    return f"{os.path.basename(site.file)}:{site.line}" if site else "the line"


def _lines(*lines: str) -> str:
    return "\n".join(lines)


def _cpu_worker(case: Case) -> str:
    if case.slug in CROSSINGS:
        return "Return CPU tensors from the worker: leave out .cuda() and .to(device) there."
    code = case.touch.code if case.touch else ""
    kept = without_cuda(code)
    if kept == code or not kept:
        return f"Let the worker stay on the CPU: take what {_where(case.touch)} needs from the GPU out of the dataset."
    left, _, right = kept.partition(" = ")
    if left == right:
        return f"Stay on the CPU in the worker: delete {_where(case.touch)}."
    return _lines(f"Build it on the CPU in the worker, {_where(case.touch)}:", *(f"    {line}" for line in kept.splitlines()))


def _move_in_parent(case: Case) -> str:
    if case.fork is None:
        return _lines("Move it in the process that uses it:", '    x = x.to("cuda", non_blocking=True)')
    targets = loop_targets(case.fork.code if case.fork else "")
    moves = [f'        {name} = {name}.to("cuda", non_blocking=True)' for name in targets]
    head = case.fork.code if targets and case.fork else "for batch in loader:"
    return _lines(
        f"Move each batch in the main process, {_where(case.fork)}:",
        f"    {head}",
        *(moves or ['        batch = batch.to("cuda", non_blocking=True)']),
    )


def _copy_dataset(case: Case) -> str:
    place = _where(case.origin.site if case.origin else None)
    code = without_cuda(case.origin.site.code) if case.origin and case.slug not in CROSSINGS else ""
    lines = [f"Keep the dataset on the CPU, {place}:", f"    {code}"] if code else ["Keep the dataset on the CPU,"]
    return _lines(*lines, "and move each batch after the loader. Or use num_workers=0: data that is on the GPU already needs no workers.")


def _map_location(case: Case) -> str:
    code = (case.touch.code if case.touch else "") or "torch.load(path)"
    return _lines(f"Load to the CPU in the worker, {_where(case.touch)}:", f"    {with_map_location(code)}")


def _late_init(case: Case) -> str:
    if case.slug == "forbidden-init":
        return f"Ask for CUDA later: move {_where(case.touch)} into the function that needs the GPU."
    if case.start_method == "forkserver":
        return f"Take CUDA out of what the fork server preloads ({_where(case.origin.site if case.origin else None)}): its children inherit it."
    if case.origin and case.origin.between:
        down, up = case.origin.between
        return f"Something wakes CUDA between {_where(down)} and {_where(up)}: do that after {_where(case.fork)}, or in the child."
    if case.fork is None:
        return f"Initialise CUDA in the child: move {_where(case.origin.site if case.origin else None)} below the fork."
    return _lines(f"Move {_where(case.origin.site if case.origin else None)} below {_where(case.fork)}, so that the child is forked first.")


def _nvml_check(case: Case) -> str:
    return _lines(
        f"{_where(case.origin.site if case.origin else None)} only asks whether there is a GPU. Let it ask without waking CUDA:",
        "    PYTORCH_NVML_BASED_CUDA_CHECK=1 python ...",
    )


def _driver_import(case: Case) -> str:
    site = case.origin.site if case.origin else None
    inner = next((f for f in reversed(site.stack) if f.function == "<module>"), None) if site else None
    via = f" ({os.path.basename(inner.file)}:{inner.line} does it)" if inner and site and inner.file != site.file else ""
    where = "where the GPU is needed" if case.slug == "forbidden-init" else "after the workers are made, or inside the child"
    return f"Importing initialises CUDA at {_where(site)}{via}: do that import {where}."


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
    return _lines(f"Start the child without fork, {_where(case.fork)}:", '    multiprocessing.get_context("spawn").Process(...)', price)


def _pool_spawn(case: Case) -> str:
    code = {
        "executor": 'ProcessPoolExecutor(..., mp_context=multiprocessing.get_context("spawn"))',
        "joblib": 'Parallel(..., backend="loky")',
    }.get(case.maker or "", 'multiprocessing.get_context("spawn").Pool(...)')
    return _lines(f"Start the pool without fork, {_where(case.fork)}:", f"    {code}")


def _server_hook(case: Case) -> str:
    hook = {
        "gunicorn": "in gunicorn's post_fork or post_worker_init hook, or drop --preload (preload_app)",
        "celery": "in a handler of celery.signals.worker_process_init, or use --pool=solo",
    }.get(case.maker or "", "after the server forked (uWSGI: @uwsgidecorators.postfork, or lazy-apps = true)")
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


def loop_targets(code: str) -> list[str]:
    """The names that a `for` line binds: `for x, y in loader:` gives x and y."""
    tree = _source.tree(code.rstrip(":") + ": pass")
    loop = tree.body[0] if tree else None
    if not isinstance(loop, ast.For):
        return []
    target = loop.target.elts[-1] if _enumerated(loop) and isinstance(loop.target, ast.Tuple) else loop.target
    return [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]


def _enumerated(loop: ast.For) -> bool:
    return isinstance(loop.iter, ast.Call) and isinstance(loop.iter.func, ast.Name) and loop.iter.func.id == "enumerate"


def without_cuda(code: str) -> str:
    """A line of source without its moves to CUDA: `.cuda()`, `.to("cuda")`, `.to(device)`, `device=...`."""
    tree = _source.tree(code)
    return ast.unparse(_Stay().visit(tree)) if tree and _moves(tree) else code


def with_map_location(code: str) -> str:
    """A line of source whose torch.load(...) or torch.jit.load(...) loads to the CPU."""
    tree = _source.tree(code)
    if tree is None:
        return code
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "load":
            node.keywords = [k for k in node.keywords if k.arg != "map_location"]
            node.keywords.append(ast.keyword("map_location", ast.Constant("cpu")))
    return ast.unparse(tree)


def _moves(tree: ast.AST) -> bool:
    return any(_is_move(node) or _device(node) for node in ast.walk(tree))


def _is_move(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (node.func.attr == "cuda" or (node.func.attr == "to" and _to_device(node)))
    )


def _to_device(node: ast.Call) -> bool:
    """Whether a `.to(...)` names a device: it may also name a dtype alone."""
    first = node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "device"), None)
    text = ast.unparse(first) if first else ""
    return "cuda" in text or "device" in text


def _device(node: ast.AST) -> list[ast.keyword]:
    return [k for k in node.keywords if k.arg == "device"] if isinstance(node, ast.Call) and not _is_move(node) else []


class _Stay(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if _is_move(node) and isinstance(node.func, ast.Attribute):
            rest = [k for k in node.keywords if k.arg == "dtype"]
            return ast.Call(node.func, [], rest) if rest else node.func.value
        for keyword in _device(node):
            node.keywords.remove(keyword)
        return node
