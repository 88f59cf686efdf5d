"""`forbid_init`: what raises inside it, where, and what does not."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path

import pytest

import cudaguard
from cudaguard import CudaInitError
from guarded import Program

LINES = """
    import json, torch, cudaguard
    found = []
    def attempt(function):
        try:
            with cudaguard.forbid_init():
                function()
            found.append(None)
        except cudaguard.CudaInitError as error:
            found.append({"text": str(error), **error.finding})
    attempt(lambda: torch.ones(1).cuda())  # cuda
    attempt(lambda: torch.zeros(1, device="cuda"))  # zeros
    attempt(lambda: torch.cuda.is_available())  # available
    attempt(lambda: torch.cuda.device_count())  # count
    attempt(lambda: torch.cuda.get_rng_state())  # state
    attempt(lambda: (torch.manual_seed(0), torch.cuda.is_initialized(), torch.device("cuda"), torch.ones(1)))
    print(json.dumps([found, torch.cuda.is_initialized(), cudaguard.origin()]))
"""
MARKS = {
    "# cuda": ("initialised", "torch.Tensor.cuda"),
    "# zeros": ("initialised", "torch.zeros"),
    "# available": ("queried", "torch.cuda.is_available"),
    "# count": ("queried", "torch.cuda.device_count"),
    "# state": ("initialised", "torch.cuda.get_rng_state"),
}


@pytest.mark.parametrize("mode", ["error", "record", "warn"])
def test_the_line_that_would_initialise_or_ask_raises(program: Program, mode: str) -> None:
    """In every mode the error names line, call and how far it would have gone; CUDA stays down, and what asks nothing passes."""
    run = program(LINES, mode=mode)
    found, initialised, origin = run.json()
    assert not initialised
    assert origin is None
    for (mark, (tier, call)), finding in zip(MARKS.items(), found, strict=False):
        assert (finding["slug"], finding["severity"], finding["tier"], finding["simulated"]) == ("forbidden-init", "error", tier, True)
        for place in (finding["origin"], finding["touch"]):
            assert (place["file"], place["line"], place["call"]) == (str(run.script), run.line(mark), call)
    assert found[-1] is None
    assert run.slugs() == ["forbidden-init"] * 5
    assert run.err == ""


def test_it_works_where_there_is_no_gpu_at_all(program: Program) -> None:
    """The check needs no device: a plain CPU machine enforces it."""
    run = program(LINES, simulate=None)
    found, _, _ = run.json()
    assert [bool(finding) for finding in found] == [True] * 5 + [False]


def test_queries_can_be_allowed_and_the_strictest_block_wins(program: Program) -> None:
    """`allow_queries=True` lets questions pass; not inside a block that does not, and never initialisation."""
    source = """
        import torch, cudaguard
        def refused(function):
            try:
                function()
            except cudaguard.CudaInitError:
                return True
            return False
        with cudaguard.forbid_init():
            with cudaguard.forbid_init(allow_queries=True):
                print(refused(torch.cuda.is_available), refused(torch.cuda.init))
            print(refused(torch.cuda.is_available))
        with cudaguard.forbid_init(allow_queries=True) as block:
            print(refused(torch.cuda.is_available), refused(torch.cuda.device_count), refused(torch.cuda.init), len(block.refused))
        print(refused(torch.cuda.init), torch.cuda.is_initialized())
    """
    assert program(source).ok().out.split() == "True True True False False True 1 False True".split()


def test_threads_and_modules_inside_are_held_to_it(program: Program, tmp_path: Path) -> None:
    """Another thread raises at its own line; an import raises at the line of the module, with the chain of imports in the stack."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("from . import part\n")
    (tmp_path / "package" / "part.py").write_text("import torch\n\nFOUND = torch.cuda.is_available()\n")
    source = """
        import json, threading, torch, cudaguard
        errors = []
        def work():
            try:
                torch.ones(1).cuda()  # in a thread
            except RuntimeError as error:
                errors.append(error)
        with cudaguard.forbid_init():
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            try:
                import package  # imports
            except cudaguard.CudaInitError as error:
                errors.append(error)
        print(str(errors[1]))
        print(json.dumps([error.finding["origin"] for error in errors]))
    """
    run = program(source)
    first, second = run.json()
    assert (first["file"], first["line"]) == (str(run.script), run.line("# in a thread"))
    assert (second["file"], second["line"], second["code"]) == (str(tmp_path / "package" / "part.py"), 3, "FOUND = torch.cuda.is_available()")
    chain = [(Path(frame["file"]).name, frame["line"]) for frame in second["stack"]]
    assert chain == [("program.py", run.line("# imports")), ("__init__.py", 1), ("part.py", 3)]
    assert f"program.py:{run.line('# imports')} -> package/__init__.py:1 -> package/part.py:3" in run.out


def test_what_wakes_the_driver_unseen_is_told_at_the_end(program: Program) -> None:
    """C code is seen when the block ends: with the lines it lies between, or the line itself where the block has no other."""
    source = """
        import json, torch, cudaguard
        try:
            with cudaguard.forbid_init():  # begins
                x = 1
                g = torch.Generator(device="cuda")
                y = 2  # ends
        except cudaguard.CudaInitError as error:
            print(json.dumps([error.finding, str(error)]))
    """
    run = program(source)
    finding, text = run.json()
    assert [site["line"] for site in finding["origin"]["between"]] == [run.line("# begins"), run.line("# ends")]
    assert finding["tier"] == "driver"
    assert "still down" in text
    assert "found up" in text
    one = program(source.replace("                x = 1\n", "").replace("                y = 2  # ends\n", ""), name="one.py")
    assert one.json()[0]["origin"]["line"] == one.line("Generator")


def test_an_import_that_wakes_the_driver_in_c_raises_there(program: Program, tmp_path: Path) -> None:
    """Inside a block that import raises when its body ends, also where it is the first to import torch."""
    (tmp_path / "waking.py").write_text("import torch\n\nGENERATOR = torch.Generator(device='cuda')\n")
    source = """
        import json, cudaguard
        with cudaguard.forbid_init():
            try:
                import waking
            except cudaguard.CudaInitError as error:
                print(json.dumps(error.finding["origin"]))
    """
    origin = program(source).json()
    assert (Path(origin["file"]).name, origin["line"]) == ("waking.py", 3)


def test_an_exception_inside_passes_untouched(program: Program) -> None:
    """A block adds nothing to an exception that leaves it, also where the driver woke; the finding is in the report."""
    source = """
        import torch, cudaguard
        thrown = KeyError("mine")
        try:
            with cudaguard.forbid_init():
                torch.Generator(device="cuda")
                raise thrown
        except KeyError as error:
            print(error is thrown, error.__cause__, error.__context__, getattr(error, "__notes__", None))
    """
    run = program(source).ok()
    assert run.out.split() == ["True", "None", "None", "None"]
    assert run.slugs() == ["forbidden-init"]


def test_it_works_with_the_guard_off_and_leaves_it_off(program: Program) -> None:
    """Off, the hooks are there for the block alone; `CUDAGUARD=off` in the environment forbids nothing."""
    source = """
        import os, torch, cudaguard
        cudaguard.disable()
        before = torch.cuda._lazy_init
        for _ in range(3):
            try:
                with cudaguard.forbid_init():
                    torch.cuda.init()
                print("passed")
            except cudaguard.CudaInitError:
                print("refused", torch.cuda._lazy_init is before, os.environ.get("CUDAGUARD"))
    """
    assert program(source, mode=None).ok().out.split() == ["refused", "True", "None"] * 3
    assert program(source, mode="off").ok().out.split()[0] == "passed"


def test_a_block_binds_its_own_process_and_time(program: Program) -> None:
    """A child forked inside is judged by itself, and after the block CUDA may be used."""
    source = """
        import os, torch, cudaguard
        with cudaguard.forbid_init():
            pid = os.fork()
            if pid == 0:
                torch.ones(1).cuda()
                os._exit(7)
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        torch.ones(1).cuda()
    """
    run = program(source).ok()
    assert run.out.split() == ["7"]
    assert "forbidden-init" not in run.slugs()


def test_cuda_that_was_up_before_is_said_and_is_no_event(program: Program) -> None:
    """Entering warns where CUDA was initialised already, and names the line; then nothing raises."""
    source = """
        import torch, warnings, cudaguard
        torch.ones(1).cuda()  # up
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            with cudaguard.forbid_init():  # entered
                torch.ones(1).cuda()
                torch.cuda.is_available()
        print(said[0].category.__name__, said[0].lineno, said[0].filename == __file__, said[0].message)
    """
    run = program(source).ok()
    assert run.out.split()[:3] == ["RuntimeWarning", str(run.line("# entered")), "True"]
    assert f"program.py:{run.line('# up')}" in run.out
    assert run.slugs() == []


def test_ignore_silences_it(program: Program) -> None:
    """`ignore("forbidden-init")` around a line lets it pass."""
    source = """
        import torch, cudaguard
        with cudaguard.forbid_init(), cudaguard.ignore("forbidden-init"):
            torch.cuda.is_available()
    """
    assert program(source).ok().slugs() == []


DECORATED = """
    import asyncio, json, torch, cudaguard
    def refused(function):
        try:
            function()
        except cudaguard.CudaInitError as error:
            return error.finding["origin"]["line"]
        return None

    @cudaguard.forbid_init()
    def plain():
        torch.cuda.is_available()  # plain

    @cudaguard.forbid_init()
    def counting():
        yield 1
        torch.cuda.is_available()  # generator

    @cudaguard.forbid_init()
    async def waiting():
        await asyncio.sleep(0.05)
        torch.cuda.is_available()  # coroutine

    @cudaguard.forbid_init()
    async def streaming():
        yield 1
        torch.cuda.is_available()  # async generator

    async def other():
        await asyncio.sleep(0.01)
        return refused(torch.cuda.device_count)

    async def both():
        return await asyncio.gather(waiting(), other(), return_exceptions=True)

    async def stream():
        seen = []
        try:
            async for value in streaming():
                seen.append(refused(torch.cuda.device_count))
        except cudaguard.CudaInitError as error:
            seen.append(error.finding["origin"]["line"])
        return seen

    found = {"plain": refused(plain)}
    counter = counting()
    found["generator"] = [next(counter), refused(torch.cuda.device_count), refused(lambda: next(counter))]
    error, between = asyncio.run(both())
    found["coroutine"] = [error.finding["origin"]["line"], between]
    found["async generator"] = asyncio.run(stream())
    print(json.dumps(found))
"""


def test_above_a_function_it_holds_while_the_function_s_own_code_runs(program: Program) -> None:
    """Functions, generators, coroutines and async generators: forbidden inside, allowed to others while they wait."""
    run = program(DECORATED)
    found = run.json()
    assert found["plain"] == run.line("# plain")
    assert found["generator"] == [1, None, run.line("# generator")]
    assert found["coroutine"] == [run.line("# coroutine"), None]
    assert found["async generator"] == [None, run.line("# async generator")]


def test_above_a_function_it_keeps_what_the_function_is() -> None:
    """Names, results, what is sent in and thrown in, and how it closes: as without it."""
    closed = []

    @cudaguard.forbid_init()
    def echo(first: str):  # type: ignore[no-untyped-def]
        """Echo."""
        try:
            while True:
                try:
                    first = yield first
                except ValueError:
                    first = "caught"
        finally:
            closed.append("sync")

    talk = echo("a")
    assert (next(talk), talk.send("b"), talk.throw(ValueError())) == ("a", "b", "caught")
    talk.close()
    assert (echo.__name__, echo.__doc__) == ("echo", "Echo.")

    @cudaguard.forbid_init()
    async def answer(value: int) -> int:
        await asyncio.sleep(0)
        return value

    @cudaguard.forbid_init()
    async def stream():  # type: ignore[no-untyped-def]
        try:
            got = yield 1
            yield got
        finally:
            closed.append("async")

    async def use() -> list[object]:
        inner = stream()
        seen = [await inner.asend(None), await inner.asend("sent")]
        await inner.aclose()
        return [*seen, await answer(3)]

    assert asyncio.run(use()) == [1, "sent", 3]
    assert closed == ["sync", "async"]


def test_the_error_travels() -> None:
    """It is built from one string, keeps its finding when pickled, and is a RuntimeError."""
    error = pickle.loads(pickle.dumps(CudaInitError("text", {"slug": "forbidden-init"})))
    assert (str(error), error.finding, isinstance(error, RuntimeError)) == ("text", {"slug": "forbidden-init"}, True)
