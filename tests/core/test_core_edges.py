"""The edges of children: what is explained there, and what goes through them untouched."""

from __future__ import annotations

import sys

import pytest

from guarded import Program

OWN_FAULT = """
    import multiprocessing

    import torch

    def job():
        try:
            1 / 0
        except ZeroDivisionError:
            raise ValueError("of the program's own")

    if __name__ == "__main__":
        torch.zeros(1, device="cuda")
        process = multiprocessing.get_context("fork").Process(target=job)
        process.start()
        process.join()
        assert process.exitcode == 1
"""


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Python 3.10 raises again with the traceback that was caught, so the guard's own line stays in it"
)
def test_a_childs_own_exception_is_printed_as_without_the_guard(program: Program) -> None:
    """The traceback of a fault that is not CUDA's has the same lines, its context too."""
    guarded, plain = (program(OWN_FAULT, mode=mode).ok() for mode in ("error", "off"))
    assert "During handling of the above exception" in plain.err
    assert guarded.err == plain.err
    assert guarded.report == []


UNSENDABLE = """
    import threading

    import torch
    from torch.utils.data import DataLoader

    class Row:
        def __init__(self):
            self.x, self.lock = torch.ones(2), threading.Lock()

    def gather(items):
        return {"meta": [1, 2, 3, Row()]}

    if __name__ == "__main__":
        for batch in DataLoader(range(2), collate_fn=gather, num_workers=1, multiprocessing_context="fork"):
            pass
"""


def test_an_output_that_cannot_be_sent_is_named_down_to_its_part(program: Program) -> None:
    """Where PyTorch would wait for ever, that batch's error says which part does not pickle."""
    done = program(UNSENDABLE, simulate=None)
    assert done.code == 1
    assert "cudaguard.errors.WorkerOutputError: cannot pickle '_thread.lock' object" in done.err
    assert "batch['meta'][3].lock" in done.err
    assert done.slugs() == ["unsendable-output"]


KILLED = """
    import os
    import signal

    import torch
    from torch.utils.data import DataLoader

    def dies(items):
        os.kill(os.getpid(), signal.SIGKILL)

    if __name__ == "__main__":
        torch.zeros(1, device="cuda")  # started here
        try:
            next(iter(DataLoader(range(2), collate_fn=dies, num_workers=1, multiprocessing_context="fork")))
        except RuntimeError as error:
            print(type(error).__name__, str(error).partition("(")[0], len(getattr(error, "__notes__", [])))
"""


def test_a_worker_that_dies_is_noted_on_pytorchs_own_exception(program: Program) -> None:
    """The exception stays PyTorch's; a note tells of the fork, and claims no cause."""
    done = program(KILLED).ok()
    notes = "1" if sys.version_info >= (3, 11) else "0"  # Python 3.10 has none: the text goes to stderr
    assert done.out.split() == ["RuntimeError", "DataLoader", "worker", notes]
    (finding,) = done.report
    assert (finding["slug"], finding["origin"]["line"]) == ("worker-died", done.line("# started here"))
    assert finding["touch"] is None


def test_a_spawned_worker_that_dies_is_not_blamed_on_somebody_elses_fork(program: Program) -> None:
    """It began anew: a fork that the program made before is no reason for its death."""
    other = "    import multiprocessing\n        multiprocessing.get_context('fork').Process(target=print).start()\n        try:"
    source = KILLED.replace('context="fork"', 'context="spawn"').replace("    try:", other, 1)
    done = program(source).ok()
    assert done.out.split() == ["RuntimeError", "DataLoader", "worker", "0"]
    assert done.slugs() == []
    assert "cudaguard" not in done.err


LAST_WORDS = """
    import os

    import torch

    held = torch.ones(2, device="cuda")  # started here
    pid = os.fork()  # forked here
    if pid == 0:
        held.sum()  # touched here
    os.waitpid(pid, 0)
"""


def test_the_last_words_of_a_plain_fork_are_explained(program: Program) -> None:
    """After os.fork nobody but the interpreter catches what the child raises: it prints the guard's error."""
    done = program(LAST_WORDS).ok()
    for mark in ("started here", "forked here", "touched here"):
        assert f"{done.script.name}:{done.line(mark)}" in done.err
    assert done.slugs() == ["inherited-tensor"]


FOREIGN = """
    import multiprocessing

    import torch

    class DriverError(Exception):
        def __init__(self, status, text):
            super().__init__(text)

    def task(n):
        raise DriverError(3, "cudaErrorInitializationError: initialization error")

    if __name__ == "__main__":
        torch.zeros(1, device="cuda")  # started here
        with multiprocessing.get_context("fork").Pool(1) as pool:
            try:
                pool.map_async(task, [1]).get(timeout=30)
            except RuntimeError as error:
                print(type(error).__name__, *getattr(error, "__notes__", ["started here"]))
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no notes")
def test_another_librarys_exception_crosses_a_pool_with_a_note(program: Program) -> None:
    """One that would not unpickle in the parent, where the pool would wait for ever, arrives as a RuntimeError that names it."""
    done = program(FOREIGN).ok()
    assert done.out.startswith("RuntimeError")
    assert "started here" in done.out
    assert done.slugs() == ["foreign-library"]


STARTING = """
    import os
    import signal
    import threading
    import time

    import torch

    started = threading.Event()
    torch.cuda._lazy_call(lambda: (started.set(), time.sleep(1)))
    thread = threading.Thread(target=torch.cuda.init)
    thread.start()
    assert started.wait(20)
    pid = os.fork()  # torch's lock is held by the thread, which the child does not have
    if pid == 0:
        signal.alarm(20)
        torch.cuda.manual_seed(1)
        try:
            torch.ones(1).cuda()
        except Exception as error:
            print(type(error).__name__, flush=True)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    thread.join()
    print(torch.ones(1).cuda().device)
"""


def test_a_fork_while_another_thread_starts_cuda_neither_hangs_nor_misleads(program: Program) -> None:
    """The child seeds without waiting for a lock that nobody will release, and its touch is judged."""
    done = program(STARTING).ok()
    assert done.out.split() == ["CudaForkError", "cuda:0"]
    assert done.slugs() == ["fork-after-init"]


def test_an_output_that_looks_like_torchdatas_messages_is_an_output(program: Program) -> None:
    """Three parts with a number in the middle, an attribute called `initial_state`: the error is raised, not handed over as a batch."""
    source = """
        import json, threading, torch, cudaguard
        from torch.utils.data import DataLoader

        class Start:
            def __init__(self):
                self.initial_state = threading.Lock()

        def triple(items):
            return torch.zeros(1), 5, threading.Lock()

        def start(items):
            return Start()

        if __name__ == "__main__":
            seen = []
            for collate in (triple, start):
                try:
                    next(iter(DataLoader([0], num_workers=1, collate_fn=collate, timeout=20, multiprocessing_context="fork")))
                except cudaguard.WorkerOutputError as error:
                    seen.append("cannot be sent" in str(error))
            print(json.dumps(seen))
    """
    assert program(source).json() == [True, True]
