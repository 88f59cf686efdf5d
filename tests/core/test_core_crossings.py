"""What crosses between processes: outputs that cannot be sent, workers whose loop ends, tensors that are sent on, pinning."""

from __future__ import annotations

import pytest

from guarded import Program

INHERITED = """
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Boxes(Dataset):
        def __init__(self):
            self.boxes = [torch.full((i + 1, 4), float(i)).cuda() for i in range(4)]  # started here

        def __len__(self):
            return 4

        def __getitem__(self, i):
            return self.boxes[i], i

    if __name__ == "__main__":
        loader = DataLoader(Boxes(), batch_size=2, num_workers=1, collate_fn=lambda b: tuple(zip(*b)), multiprocessing_context="fork")
        for batch in loader:  # forked here
            pass
"""


def test_an_inherited_tensor_that_a_worker_only_returns_is_called_so(program: Program) -> None:
    """Nothing in the worker uses it: to send it is the first use, and its dataset is what has to change, not its output."""
    done = program(INHERITED)
    assert done.code == 1
    assert "cudaguard.errors.CudaForkError: CUDA error: initialization error" in done.err
    assert "batch[0][0] (Tensor)" in done.err
    (finding,) = done.report
    places = [finding[step]["line"] for step in ("origin", "fork")]
    assert (finding["slug"], places) == ("inherited-tensor", [done.line("# started here"), done.line("# forked here")])
    assert all(f"{done.script.name}:{line}" in done.err for line in places)
    assert finding["advice"][0]["id"] == "copy-dataset-to-cpu"


TOUCHED_WHEN_PICKLED = """
    import torch
    from torch.utils.data import DataLoader

    class Lazy:
        def __reduce__(self):
            return list, ((torch.ones(1).cuda(),),)  # touched here

    def gather(items):
        return Lazy()

    if __name__ == "__main__":
        torch.zeros(1, device="cuda")
        for batch in DataLoader(range(2), collate_fn=gather, num_workers=1, multiprocessing_context="fork"):
            pass
"""


def test_an_output_that_touches_cuda_when_it_is_pickled_is_a_touch(program: Program) -> None:
    """The guard's own error in the queue's feeder thread goes on as it is: no second finding on the same fault."""
    done = program(TOUCHED_WHEN_PICKLED)
    assert done.code == 1
    assert "cudaguard.errors.CudaForkError: Cannot re-initialize CUDA in forked subprocess" in done.err
    assert [(finding["slug"], finding["touch"]["line"]) for finding in done.report] == [("fork-after-init", done.line("# touched here"))]


SAMPLED = """
    import torch
    from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler

    class Rows(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, i):
            return torch.full((2,), float(i))

    if __name__ == "__main__":
        indices = torch.arange(0, 8, 2, device="cuda")  # started here
        sampler = SubsetRandomSampler(indices)
        loader = DataLoader(Rows(), batch_size=2, sampler=sampler, num_workers=1, pin_memory=PIN, multiprocessing_context="fork")
        try:
            next(iter(loader))  # forked here
        except RuntimeError as error:
            print(type(error).__name__, error.finding["slug"], error.finding["worker"]["id"])
            raise
"""


@pytest.mark.parametrize("pinned", [False, True], ids=["plain", "pinned"])
@pytest.mark.parametrize("kind", ["torch.utils.data", "torchdata.stateful_dataloader"])
def test_what_ends_a_workers_loop_reaches_the_parent(program: Program, pinned: bool, kind: str) -> None:
    """The loop itself fails as it receives CUDA indices: the parent gets the guard's error, whole, and no story of a silent death."""
    source = SAMPLED.replace("PIN", str(pinned))
    if kind != "torch.utils.data":
        pytest.importorskip(kind)
        source = source.replace("import DataLoader,", "import").replace(
            "    class Rows", f"    from {kind} import StatefulDataLoader as DataLoader\n\n    class Rows"
        )
    done = program(source)
    assert done.out.split() == ["CudaForkError", "fork-after-init", "0"]
    assert "exited unexpectedly" not in done.err
    assert [finding["slug"] for finding in done.report if finding["severity"] == "error"] == ["fork-after-init"]
    for mark in ("# started here", "# forked here"):
        assert f"{done.script.name}:{done.line(mark)}" in done.err


UNREADABLE = """
    import torch
    from torch.utils.data import DataLoader

    def refuse():
        raise ValueError("no index of mine")

    class Index:
        def __reduce__(self):
            return refuse, ()

    if __name__ == "__main__":
        torch.zeros(1, device="cuda")
        loader = DataLoader([1, 2], sampler=[Index()], batch_size=1, num_workers=1, multiprocessing_context="fork")
        try:
            next(iter(loader))
        except RuntimeError as error:
            print(str(error).partition(" (")[0], getattr(error, "__notes__", []))
"""


def test_a_worker_that_dies_of_its_own_exception_did_not_die_without_one(program: Program) -> None:
    """It printed it; that its parent had started CUDA has nothing to do with it."""
    done = program(UNREADABLE).ok()
    assert done.out.strip() == "DataLoader worker []"
    assert "ValueError: no index of mine" in done.err
    assert done.report == []
    assert "cudaguard:" not in done.err


PINNED = """
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Rows(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return torch.full((2,), float(i)).cuda()

    if __name__ == "__main__":
        other = DataLoader(range(4), num_workers=1, multiprocessing_context="METHOD")
        loader = DataLoader(Rows(), batch_size=2, num_workers=2, pin_memory=True, multiprocessing_context="METHOD")
        batches = iter(loader)  # made here
        if SLOW:
            assert len(list(other)) == 4
        pids = [worker.pid for worker in batches._workers]
        try:
            for batch in batches:
                pass
        except RuntimeError as error:
            print(type(error).__name__, pids.index(error.finding["pid"]), error.finding["worker"]["id"])
        del batches  # ends its threads: Python's end, in the midst of torch's pinning, would abort the process, guard or none
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("slow", [False, True], ids=["at once", "another made since"])
def test_a_batch_that_cannot_be_pinned_names_where_its_worker_was_made(program: Program, method: str, slow: bool) -> None:
    """The parent's pin thread fails, but it is the worker's output: `fork` is the place that made the worker, whatever the start method."""
    source = PINNED.replace("METHOD", method).replace("SLOW", str(slow))
    env = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}  # workers that are forked stay healthy
    done = program(source, env=env).ok()
    assert done.out.split() == ["WorkerOutputError", "0", "0"]
    found = [finding for finding in done.report if finding["slug"] == "pin-cuda-output"]
    assert len(found) == len({finding["pid"] for finding in found}) <= 2  # as every finding: one for each worker
    for finding in found:
        assert (finding["fork"]["line"], finding["maker"], finding["start_method"]) == (done.line("# made here"), "dataloader", method)
    assert f"{done.script.name}:{done.line('# made here')}" in "".join(fix["text"] for fix in found[0]["advice"])


SENT_ON = """
    import torch
    import torch.multiprocessing as mp

    def stage(source, target, pipe):
        x = source.get(timeout=30)
        if HOW == "queue":
            target.put(x)
            target.close()
            target.join_thread()
        else:
            pipe.send(x)  # sent here

    HOW = "WAY"
    if __name__ == "__main__":
        ctx = mp.get_context("spawn")
        source, target = ctx.Queue(), ctx.Queue()
        ours, theirs = ctx.Pipe()
        x = torch.arange(3.0, device="cuda")
        process = ctx.Process(target=stage, args=(source, target, theirs))
        process.start()  # made here
        source.put(x)
        process.join(60)
        print(process.exitcode)
"""


@pytest.mark.parametrize("way", ["queue", "pipe"])
def test_a_cuda_tensor_that_is_sent_on_is_told_wherever_it_is_sent(program: Program, way: str) -> None:
    """Outside loaders nobody waits for a batch: the guard's error stands where torch's stood, in the queue's thread or on the user's line."""
    done = program(SENT_ON.replace("WAY", way)).ok()
    assert done.out.split() == ["0" if way == "queue" else "1"]
    assert "cudaguard.errors.WorkerOutputError: Attempted to send CUDA tensor received from another process" in done.err
    (finding,) = [finding for finding in done.report if finding["severity"] == "error"]
    assert (finding["slug"], finding["advice"][0]["id"]) == ("ipc-broken", "clone-before-send")
    assert (finding["maker"], finding["start_method"], finding["fork"]["line"]) == ("process", "spawn", done.line("# made here"))
    if way == "pipe":
        assert finding["touch"]["line"] == done.line("# sent here")


SHARED = """
    import os

    import torch

    class Dead:
        def _share_cuda_(self):
            raise RuntimeError("CUDA error: initialization error")  # refused here, as a real storage that the child inherited

    held = torch.ones(2, device="cuda")  # started here
    storage = torch.ones(2)._typed_storage()
    storage._untyped_storage = Dead()
    if os.fork() == 0:
        try:
            storage._share_cuda_()
        except RuntimeError as error:
            print(type(error).__name__, getattr(error, "finding", None) is not None, error.__cause__ is error, flush=True)
        os._exit(0)
    os.wait()
    try:
        storage._share_cuda_()
    except RuntimeError as error:
        print(type(error).__name__)
"""


@pytest.mark.parametrize(("mode", "raised"), [("error", ["CudaForkError", "True"]), ("warn", ["RuntimeError", "False"])])
def test_an_inherited_cuda_tensor_is_refused_where_it_is_sent(program: Program, mode: str, raised: list[str]) -> None:
    """Whoever catches it there has the guard's error; in the parent, and where the guard only warns, torch's own goes through."""
    done = program(SHARED, mode=mode).ok()
    assert done.out.split() == [*raised, "False", "RuntimeError"]
    assert [(finding["slug"], finding["touch"]["line"]) for finding in done.report] == [("inherited-tensor", done.line("# refused here"))]


BILLIARD = """
    import billiard
    import torch

    def job():
        torch.ones(1).cuda()

    if __name__ == "__main__":
        torch.zeros(1, device="cuda")
        process = billiard.Process(target=job)
        process.start()
        process.join()
"""

PREEXEC = """
    import subprocess
    import sys

    import torch

    torch.cuda.get_device_name(0)
    try:
        subprocess.run([sys.executable, "-c", "pass"], preexec_fn=lambda: torch.cuda.set_device(0))
    except subprocess.SubprocessError:
        pass
"""


@pytest.mark.parametrize(("source", "needs", "maker"), [(BILLIARD, "billiard", "process"), (PREEXEC, "subprocess", "subprocess")])
def test_who_made_a_child_is_who_forked_here(program: Program, source: str, needs: str, maker: str) -> None:
    """billiard without Celery is a multiprocessing like another; what runs between fork and exec is Python in a forked child."""
    pytest.importorskip(needs)
    (finding,) = program(source).report
    assert (finding["slug"], finding["maker"]) == ("fork-after-init", maker)
    advised = [fix["id"] for fix in finding["advice"]]
    assert "late-init" in advised and "server-hook" not in advised


PUT = """
    import MODULE as multiprocessing
    import torch

    weights = torch.ones(3).cuda()

    def send(queue):
        queue.put("first")
        queue.put(WHAT)  # put here
        queue.close()
        queue.join_thread()

    if __name__ == "__main__":
        queue = multiprocessing.get_context("fork").KIND()
        child = multiprocessing.get_context("fork").Process(target=send, args=(queue,))
        child.start()
        print(queue.get(timeout=30))
        child.join(30)
        print(hasattr(type(queue).put, "__wrapped__"))
"""


@pytest.mark.parametrize(
    ("module", "kind", "what"),
    [
        ("multiprocessing", "Queue", "weights"),
        ("multiprocessing", "JoinableQueue", "(1, weights)"),
        ("multiprocess", "Queue", "{'w': weights}"),
        ("billiard", "Queue", "[weights]"),
    ],
)
def test_an_inherited_tensor_in_a_queue_is_blamed_on_the_line_that_put_it(program: Program, module: str, kind: str, what: str) -> None:
    """It fails in the queue's own thread, on whose stack there is no line of the user's. The parent's queues stay as they are."""
    pytest.importorskip(module)
    done = program(PUT.replace("MODULE", module).replace("KIND", kind).replace("WHAT", what)).ok()
    assert done.out.split() == ["first", "False"]
    (finding,) = [finding for finding in done.report if finding["slug"] == "inherited-tensor"]
    assert (finding["touch"]["line"], finding["touch"]["function"]) == (done.line("# put here"), "send")
    assert f"{done.script.name}:{done.line('# put here')}" in done.err
