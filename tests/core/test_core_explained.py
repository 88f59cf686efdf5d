"""What children of an initialised parent raise, wrap, group and hand on: which of it is explained, and how."""

from __future__ import annotations

import sys

import pytest

from guarded import Program

NOTES = sys.version_info >= (3, 11)  # Python 3.10 has none: the text goes to stderr

LOOKS = """
    import multiprocessing as mp
    import pickle

    import torch

    class Server(mp.get_context("fork").Process):
        def __init__(self, conn):
            super().__init__()
            self.conn, self.n = conn, 3.0

        def leaf(self):
            assert torch.full((2,), self.n).cuda().sum().item() == 6.0

        def run(self):
            assert "run" not in vars(self) and self.run.__func__ is Server.run
            helper = mp.get_context("spawn").Process(target=print)
            helper._target, self.conn = self.leaf, None
            helper.start()
            helper.join(60)
            assert helper.exitcode == 0, helper.exitcode

    if __name__ == "__main__":
        warm = torch.zeros(1, device="cuda")
        process = Server(object)
        process.start()
        process.join(80)
        assert process.exitcode == 0, process.exitcode
"""


@pytest.mark.parametrize("mode", ["error", "record"])
def test_a_forked_process_finds_itself_as_it_made_itself(program: Program, mode: str) -> None:
    """Its method is its own, and what it holds pickles: it may spawn a helper with one of its methods."""
    done = program(LOOKS, mode=mode).ok()
    assert done.report == []
    assert done.err == ""


WRAPPED = """
    import multiprocessing as mp

    import torch

    class InferenceError(Exception):
        pass

    def infer(how):
        try:
            return table.sum().item()  # touched here
        except RuntimeError as error:
            if how == "from":
                raise InferenceError(how) from error
            if how == "group":
                raise ExceptionGroup(how, [KeyError("other"), error])
            raise InferenceError(how)

    if __name__ == "__main__":
        table = torch.ones(2, device="cuda")  # started here
        with mp.get_context("fork").Pool(1) as pool:  # forked here
            for how in HOWS:
                try:
                    pool.apply_async(infer, (how,)).get(timeout=60)
                except Exception as error:
                    print(type(error).__name__, how, *getattr(error, "__notes__", ()))
"""


@pytest.mark.parametrize("how", ["from", "while", *(["group"] if NOTES else [])])
def test_an_error_inside_another_is_noted_on_that_one(program: Program, how: str) -> None:
    """The outer exception keeps its type; the note names the line where the inner one was raised."""
    done = program(WRAPPED.replace("HOWS", repr([how]))).ok()
    assert done.out.startswith("ExceptionGroup group" if how == "group" else f"InferenceError {how}")
    assert f"program.py:{done.line('# touched here')}" in (done.out if NOTES else done.err)
    assert (done.out + done.err).count("touched     ") == 1
    assert [(finding["slug"], finding["touch"]["line"]) for finding in done.report] == [("inherited-tensor", done.line("# touched here"))]


LOADER = """
    import cudaguard
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Rows(Dataset):
        def __init__(self):
            self.table = torch.arange(4.0, device="cuda")  # started here

        def __len__(self):
            return 4

        def __getitem__(self, i):
            try:
                return self.table[i] * 2  # touched here
            except Exception as error:
                raise ValueError(f"row {i} cannot be read") from error

    if __name__ == "__main__":
        try:
            next(iter(DataLoader(Rows(), num_workers=1, multiprocessing_context="fork", timeout=60)))
        except ValueError as error:
            notes = getattr(error, "__notes__", [])
            print(len(notes), "touched     " in str(error), [f["slug"] for f in cudaguard.report().findings], *notes)
"""


def test_a_loaders_worker_carries_the_note_to_the_parent(program: Program) -> None:
    """The parent gets the dataset's own type of error, with the note and its finding; the text of the worker's traceback does not say it twice."""
    done = program(LOADER).ok()
    assert done.slugs() == ["inherited-tensor"]
    if NOTES:
        assert done.out.startswith("1 False ['inherited-tensor'] cudaguard: ")
        assert f"program.py:{done.line('# touched here')}" in done.out
    else:
        assert done.err.count("touched     ") == 1


ANOTHERS = """
    import multiprocessing as mp
    from concurrent.futures import ProcessPoolExecutor

    import torch

    def use():
        raise RuntimeError("No CUDA GPUs are available")

    def service():
        with ProcessPoolExecutor(1, mp_context=mp.get_context("spawn")) as pool:
            pool.submit(use).result(60)

    if __name__ == "__main__":
        warm = torch.zeros(1, device="cuda")
        process = mp.get_context("fork").Process(target=service)
        process.start()
        process.join(80)
        assert process.exitcode == 1
"""


def test_what_a_spawned_process_sent_is_not_blamed_on_the_fork_of_its_receiver(program: Program) -> None:
    """A forked service hands on the error of a healthy worker of its own."""
    done = program(ANOTHERS).ok()
    assert done.report == []
    assert "RuntimeError: No CUDA GPUs are available" in done.err
    assert "touched     " not in done.err


ONCE = """
    import multiprocessing as mp
    from concurrent.futures import ProcessPoolExecutor

    import torch

    class EngineError(Exception):
        pass

    def infer(n):
        raise EngineError("CUDA failed with error initialization error")

    def service():
        with ProcessPoolExecutor(1, mp_context=mp.get_context("fork")) as pool:
            pool.submit(infer, 1).result(60)

    if __name__ == "__main__":
        warm = torch.zeros(1, device="cuda")
        process = mp.get_context("fork").Process(target=service)
        process.start()
        process.join(80)
"""


def test_an_exception_that_passes_two_edges_is_noted_once(program: Program) -> None:
    """A pool in a forked process: the pool's edge notes it, the process's sees that."""
    done = program(ONCE).ok()
    assert done.slugs() == ["foreign-library"]
    assert done.err.count("touched     ") == 1


OWN_WORDS = """
    import json
    import multiprocessing as mp

    import torch

    SAID = [
        'engine not initialized: call load(device="cuda" or "cpu") first',
        "the cuda config section is not initialized",
        "CUDA is not initialized, call setup() first",
        "connection not initialized",
    ]

    class Mute(Exception):
        def __str__(self):
            raise ValueError("nothing to say")

    def say(n):
        if n == len(SAID):
            raise Mute
        raise RuntimeError(SAID[n])

    if __name__ == "__main__":
        warm = torch.zeros(1, device="cuda")
        ours, theirs = mp.Pipe()
        notes = []
        with mp.get_context("fork").Pool(1) as pool:
            for n in range(len(SAID)):
                try:
                    pool.apply_async(say, (n,)).get(60)
                except RuntimeError as error:
                    notes.append(getattr(error, "__notes__", []))
            try:
                pool.apply_async(say, (len(SAID),)).get(60)
            except Exception as error:
                notes.append(getattr(error, "__notes__", []))
        print(json.dumps(notes))
"""


def test_a_programs_own_words_are_no_librarys(program: Program) -> None:
    """Something of its own is "not initialized": that is no case of CUDA and a fork, nor is an exception that cannot say what it is."""
    done = program(OWN_WORDS)
    assert done.json() == [[]] * 5
    assert done.report == []


SWALLOWED = """
    import torch
    from torch.utils.data import DataLoader, Dataset, default_collate

    class Safe(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, i):
            try:
                return TRIED
            except Exception:
                return None

    def gather(items):
        return default_collate([item for item in items if item is not None])

    if __name__ == "__main__":
        warm = torch.zeros(1, device="cuda")  # started here
        try:
            next(iter(DataLoader(Safe(), num_workers=1, collate_fn=gather, multiprocessing_context="fork", timeout=60)))
        except IndexError as error:
            print(*getattr(error, "__notes__", ["none"]))
"""


@pytest.mark.skipif(not NOTES, reason="Python 3.10 has no notes")
@pytest.mark.parametrize("tried", ["torch.ones(2).cuda()", "torch.ones(2) / None"])
def test_what_a_loaders_worker_caught_before_is_noted_on_what_ends_it(program: Program, tried: str) -> None:
    """The dataset catches everything, and `collate_fn` falls over what is left: the note says that it may be why."""
    done = program(SWALLOWED.replace("TRIED", tried)).ok()
    if "cuda" in tried:
        assert done.out.startswith("cudaguard: an exception that this worker caught before may be why:\nCannot re-initialize CUDA")
        assert f"program.py:{done.line('# started here')}" in done.out
    else:
        assert done.out.strip() == "none"


HANDED_OVER = """
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Rows(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, i):
            return torch.ones(2).cuda() if i == 0 else 1 / 0

    if __name__ == "__main__":
        warm = torch.zeros(1, device="cuda")
        batches = iter(DataLoader(Rows(), batch_size=1, num_workers=1, multiprocessing_context="fork", timeout=60))
        for _ in range(2):
            try:
                next(batches)
            except Exception as error:
                print(type(error).__name__, getattr(error, "__notes__", []))
"""


def test_what_the_parent_was_told_of_one_batch_is_not_noted_on_another(program: Program) -> None:
    """A program that skips failing batches gets each one's own error."""
    done = program(HANDED_OVER).ok()
    assert done.out.splitlines() == ["CudaForkError []", "ZeroDivisionError []"]


ASKED = """
    import multiprocessing as mp

    import torch

    def job():
        torch.ones(2, device="cuda")

    if __name__ == "__main__":
        torch.cuda.Stream()  # wakes the driver past torch, which then marks no child
        process = mp.get_context("fork").Process(target=job)
        process.start()
        process.join(60)
"""


@pytest.mark.parametrize("mode", ["record", "warn", "error"])
def test_the_drivers_answer_to_torchs_own_question_is_no_inherited_object(program: Program, mode: str) -> None:
    """torch asked, the driver said no in its bare words: one finding, of a touch."""
    assert program(ASKED, mode=mode).ok().slugs() == ["fork-after-init"]
