"""What a child of a bad fork catches itself, and shows or sends: its only edges."""

from __future__ import annotations

import sys

import pytest

from guarded import Program

NOTES = sys.version_info >= (3, 11)  # Python 3.10 has none: the text goes to stderr once

WAYS = """
    import io
    import json
    import logging
    import os
    import pickle
    import sys
    import threading
    import traceback
    from multiprocessing.reduction import ForkingPickler

    import torch

    def touch():
        held.sum()  # touched here

    class Closing:
        def __del__(self):
            touch()

    def caught(show):
        try:
            touch()
        except RuntimeError as error:
            show(error)

    def printed():
        caught(lambda error: traceback.print_exc())

    def logged():
        logging.basicConfig(stream=sys.stderr)
        caught(lambda error: logging.exception("failed"))

    def threaded():
        thread = threading.Thread(target=touch)
        thread.start()
        thread.join()

    def deleted():
        Closing()

    def sent():
        caught(lambda error: traceback.print_exception(pickle.loads(ForkingPickler.dumps(["error", error]))[1]))

    def twice():
        caught(lambda error: (traceback.format_exc(), traceback.print_exc()))

    def dropped():
        caught(lambda error: print(type(error).__name__, file=sys.stderr))

    def shown(way):
        sys.stderr = io.StringIO()
        way()
        return sys.stderr.getvalue()

    def forked(way):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writer, shown(way).encode())
            os._exit(0)
        os.close(writer)
        text = os.fdopen(reader).read()
        os.waitpid(pid, 0)
        return text

    held = torch.ones(2, device="cuda")  # started here
    print(json.dumps({way.__name__: forked(way) for way in (printed, logged, threaded, deleted, sent, twice, dropped)}))
"""


def test_what_a_child_shows_or_sends_is_noted_with_its_type(program: Program) -> None:
    """Printed, logged, of a thread, of a `__del__`, pickled: each keeps torch's type, has one note, and leaves a finding."""
    done = program(WAYS)
    texts = done.json()
    kept = texts.pop("dropped")
    kind = kept.strip()
    for way, text in texts.items():
        assert text.count("touched     ") == 1, f"{way}: {text}"
        assert kind in text, way
        assert f"program.py:{done.line('# touched here')}" in text, way
    assert done.slugs() == ["inherited-tensor"] * len(texts)


def test_what_a_child_catches_and_does_not_show_stays_its_own(program: Program) -> None:
    """It may go on: nothing is said or written down of the one that only looked at the type."""
    done = program(WAYS.replace("(printed, logged, threaded, deleted, sent, twice, dropped)", "[dropped]"))
    assert "touched" not in done.json()["dropped"]
    assert done.report == []
    assert done.err == ""


def test_warn_warns_of_what_is_shown_and_adds_nothing_to_it(program: Program) -> None:
    """One warning, and then what PyTorch itself says."""
    done = program(WAYS.replace("(printed, logged, threaded, deleted, sent, twice, dropped)", "[twice]"), mode="warn")
    text = done.json()["twice"]
    assert text.count("CudaForkWarning") == 1
    assert text.count("touched     ") == 1
    assert not text.rstrip().endswith("explain inherited-tensor")


HEALTHY = """
    import json
    import os
    import sys
    import threading
    import traceback
    from multiprocessing.reduction import ForkingPickler

    import torch

    def hooks():
        sent = [kind.__name__ for kind in ForkingPickler._extra_reducers if issubclass(kind, Exception)]
        return [sys.excepthook.__module__, threading.excepthook.__module__, sys.unraisablehook.__module__, sent,
                traceback.TracebackException.__init__.__code__.co_filename]

    before = hooks()
    if WOKEN:
        torch.zeros(1, device="cuda")
    reader, writer = os.pipe()
    if os.fork() == 0:
        first = sys.excepthook
        if os.fork() == 0:
            os.write(writer, json.dumps([hooks(), sys.excepthook is first]).encode())
        else:
            os.wait()
        os._exit(0)
    os.wait()
    print(json.dumps([before, hooks(), *json.loads(os.read(reader, 9999))]))
"""


@pytest.mark.parametrize("woken", [False, True])
def test_only_a_child_of_a_bad_fork_is_watched(program: Program, woken: bool) -> None:
    """A parent and a healthy child have Python's own hooks; a grandchild is not watched twice."""
    before, after, child, same = program(HEALTHY.replace("WOKEN", str(woken))).json()
    assert after == before
    assert (child == before) is not woken
    assert same


LOGGED_AND_RAISED = """
    import logging

    import torch
    from torch.utils.data import DataLoader, Dataset

    class Rows(Dataset):
        def __init__(self):
            self.table = torch.arange(4.0, device="cuda")

        def __len__(self):
            return 4

        def __getitem__(self, i):
            try:
                return self.table[i] * 2
            except Exception:
                logging.exception("row %d", i)
                raise

    if __name__ == "__main__":
        try:
            next(iter(DataLoader(Rows(), num_workers=1, multiprocessing_context="fork", timeout=60)))
        except RuntimeError as error:
            print(type(error).__name__, str(error).count("touched     "), getattr(error, "__notes__", []))
"""


def test_an_exception_that_was_logged_and_raised_again_is_still_replaced(program: Program) -> None:
    """The parent of the loader gets the guard's error, as if nobody had logged torch's; there is one finding."""
    done = program(LOGGED_AND_RAISED).ok()
    assert done.out.split() == ["CudaForkError", "1", "[]"]
    assert done.slugs() == ["inherited-tensor"]
