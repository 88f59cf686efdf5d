"""Calls of other libraries that wake the driver: the origin is the line that made them."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest
import standins

from guarded import Program


@pytest.fixture
def program(program: Program, tmp_path: Path) -> Program:
    """As the other `program`, with the stand-ins installed as libraries are."""
    return functools.partial(program, env=standins.write(tmp_path))


CALLS = {
    "cupy.arange": ("import cupy", "cupy.arange(3)"),
    "numba.cuda.to_device": ("import numba.cuda", "numba.cuda.to_device([1])"),
    "jax.devices": ("import jax", "jax.devices()"),
    "onnxruntime.InferenceSession": ("import onnxruntime", "onnxruntime.InferenceSession('model')"),
    "cuda.bindings.driver.cuInit": ("import cuda.bindings.driver", "cuda.bindings.driver.cuInit(0)"),
    "triton.backends.nvidia.driver.CudaDriver.is_active": (
        "import triton.backends.nvidia.driver",
        "triton.backends.nvidia.driver.CudaDriver.is_active()",
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_the_origin_is_the_line_of_the_call(program: Program, call: str) -> None:
    """Line, call and tier are exact, and a forked child that touches CUDA afterwards is told of them."""
    loading, line = CALLS[call]
    source = f"""
        import json, os, torch, pretended, cudaguard
        {loading}
        def work():
            {line}  # here
        work()
        origin = cudaguard.origin()
        print(json.dumps([origin.file, origin.line, origin.call, origin.tier, origin.between, cudaguard.fork_safe()]))
    """
    run = program(source, simulate=None)
    assert run.json() == [str(run.script), run.line("# here"), call, "driver", None, False]


def test_a_library_that_reads_torch_s_configuration_while_it_is_imported(program: Program) -> None:
    """`torch.__config__.show()` wakes the driver, behind torch's back: the chain of imports ends at that line, and forking is not safe."""
    source = """
        import json, torch, cudaguard
        import geometric  # here
        (finding,) = cudaguard.report().findings
        print(json.dumps([cudaguard.fork_safe(), torch.cuda.is_initialized(), finding]))
    """
    run = program(source)
    safe, initialised, finding = run.json()
    origin = finding["origin"]
    assert (safe, initialised, finding["slug"], finding["tier"]) == (False, False, "import-initialises", "driver")
    assert (origin["file"], origin["line"], origin["call"]) == (str(run.script), run.line("# here"), "torch.__config__.show")
    chain = [(Path(frame["file"]).parent.name, Path(frame["file"]).name, frame["line"]) for frame in origin["stack"][1:]]
    assert chain == [("geometric", "__init__.py", 2), ("geometric", "typing.py", 5)]


def test_torch_s_configuration_fails_in_no_child(program: Program) -> None:
    """In a child whose parent woke the driver it answers, as a real one does; the touch after it is judged."""
    source = """
        import os, torch, cudaguard
        def work():
            return torch.__config__.show()  # origin
        before = work()
        pid = os.fork()
        if pid == 0:
            print(work() == before, flush=True)
            try:
                torch.ones(1, device="cuda")
            except cudaguard.CudaForkError as error:
                print(error.finding["origin"]["line"], error.finding["origin"]["call"], flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
    """
    run = program(source).ok()
    assert run.out.split() == ["True", str(run.line("# origin")), "torch.__config__.show"]


def test_what_is_watched_stays_what_it_was(program: Program) -> None:
    """Functions pickle, keep name, signature and documentation; classes are the same objects; disable() puts all back."""
    source = """
        import copy, inspect, pickle, torch, cudaguard, pretended
        import cupy, onnxruntime, numba.cuda.cudadrv.driver as driver, triton.backends.nvidia.driver as nvidia
        kinds = (onnxruntime.InferenceSession, driver.Driver, nvidia.CudaDriver)
        assert hasattr(cupy.arange, "__wrapped__")
        assert pickle.loads(pickle.dumps(cupy.arange)) is cupy.arange is copy.deepcopy(cupy.arange)
        assert (cupy.arange.__name__, cupy.arange.__doc__, str(inspect.signature(cupy.arange))) == ("arange", "Evenly spaced.", "(stop)")
        assert all(isinstance(kind, type) and not hasattr(kind, "__wrapped__") for kind in kinds)
        assert isinstance(vars(nvidia.CudaDriver)["is_active"], staticmethod) and nvidia.CudaDriver().is_active() is True
        cudaguard.disable()
        watched = (cupy.arange, driver.Driver.ensure_initialized, nvidia.CudaDriver.is_active, onnxruntime.InferenceSession.__init__)
        assert not any(hasattr(function, "__wrapped__") for function in watched)
    """
    program(source, simulate=None).ok()


def test_a_call_that_fails_but_woke_the_driver_is_the_origin(program: Program) -> None:
    """An exception of the library passes as it is, and the line is known all the same."""
    source = """
        import torch, cudaguard, pretended, cupy, cupy._creation
        try:
            cupy.asarray(3)  # fails
        except TypeError as error:
            print(error, cudaguard.origin().line)
    """
    run = program(source, simulate=None).ok()
    assert run.out.split()[-1] == str(run.line("# fails"))


def test_nvml_wakes_nothing(program: Program) -> None:
    """pynvml asks the kernel's module: no origin, no finding, and forking stays safe."""
    source = """
        import torch, cudaguard, pretended, pynvml
        pynvml.nvmlInit()
        print(pynvml.nvmlDeviceGetCount(), cudaguard.origin(), cudaguard.fork_safe())
    """
    run = program(source, simulate=None).ok()
    assert run.out.split() == ["2", "None", "True"]
    assert run.slugs() == []


def test_forbid_init_raises_at_the_call(program: Program) -> None:
    """Inside a block the call raises when it comes back with the driver awake."""
    source = """
        import torch, cudaguard, pretended, cupy
        try:
            with cudaguard.forbid_init():
                cupy.arange(3)  # here
                print("passed")
        except cudaguard.CudaInitError as error:
            print(error.finding["origin"]["line"], error.finding["origin"]["call"], error.finding["tier"])
    """
    run = program(source, simulate=None).ok()
    assert run.out.split() == [str(run.line("# here")), "cupy.arange", "driver"]


SAID = {
    "numba": "CUDA initialized before forking",
    "numba, of an older release": "[3] Call to cuInit results in CUDA_ERROR_NOT_INITIALIZED",
    "cupy": "cudaErrorInitializationError: initialization error",
    "jax": "Unable to initialize backend 'cuda': INTERNAL: no supported devices found for platform CUDA (you may need to uninstall)",
    "triton": "0 active drivers ([]). There should only be one.",
    "tensorflow": "cudaGetDevice() failed. Status: initialization error",
    "onnxruntime": "CUDA failure 3: initialization error ; GPU=0",
    "pycuda": "cuDeviceGet failed: initialization error",
}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no notes")
def test_what_libraries_say_in_a_bad_child_is_annotated_and_the_note_survives_the_pool(program: Program) -> None:
    """Each library's own exception comes back from a pool and from an executor, with the note, also if it pickles without its dict."""
    source = f"""
        import json, multiprocessing, concurrent.futures, sys
        import torch, cudaguard
        SAID = {SAID!r}
        class CUDARuntimeError(RuntimeError):
            def __reduce__(self):  # as cupy's
                return (type(self), self.args)
        def work(library):
            if library == "harmless":
                raise ValueError("the logger is not initialized")
            raise CUDARuntimeError(SAID[library])
        if __name__ == "__main__":
            torch.cuda.is_available()  # origin
            context = multiprocessing.get_context("fork")
            found = {{}}
            with context.Pool(1) as pool, concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
                for library in [*SAID, "harmless"]:
                    for way, call in (("pool", lambda: pool.apply(work, (library,))), ("executor", lambda: executor.submit(work, library).result())):
                        try:
                            call()
                        except Exception as error:
                            found[library + " " + way] = [type(error).__name__, str(error), getattr(error, "__notes__", [])]
            print(json.dumps(found))
    """
    run = program(source)
    found = run.json()
    for way in ("pool", "executor"):
        assert found.pop(f"harmless {way}") == ["ValueError", "the logger is not initialized", []]
    for name, (kind, said, notes) in found.items():
        assert (kind, said) == ("CUDARuntimeError", SAID[name.rpartition(" ")[0]])
        assert "[foreign-library]" in notes[0], name
        assert f"program.py:{run.line('# origin')}" in notes[0]
    assert len(found) == 2 * len(SAID)
    assert set(run.slugs()) == {"foreign-library"}
