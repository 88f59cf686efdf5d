"""Small packages that behave like CUDA libraries, and a driver for them to wake."""

from __future__ import annotations

import textwrap
from pathlib import Path

FILES = {
    "pretended.py": """
        from cudaguard import _driver
        _up = False
        def wake():
            global _up
            _up = True
        _driver.pretend(lambda: _up)
    """,
    "cupy/__init__.py": """
        from cupy._creation import arange, asarray
    """,
    "cupy/_creation.py": """
        import pretended
        def arange(stop):
            "Evenly spaced."
            return asarray(range(stop))
        def asarray(values):
            pretended.wake()
            return list(values)
    """,
    "numba/__init__.py": "",
    "numba/cuda/__init__.py": """
        from numba.cuda.cudadrv.driver import driver
        def to_device(values):
            driver.ensure_initialized()
            return values
    """,
    "numba/cuda/cudadrv/__init__.py": "",
    "numba/cuda/cudadrv/driver.py": """
        import pretended
        class Driver:
            def ensure_initialized(self):
                pretended.wake()
        driver = Driver()
    """,
    "jax/__init__.py": """
        from jax._src import xla_bridge
        def devices():
            return xla_bridge.backends()
    """,
    "jax/_src/__init__.py": "",
    "jax/_src/xla_bridge.py": """
        import pretended
        def backends():
            pretended.wake()
            return {"cuda": 1}
    """,
    "onnxruntime/__init__.py": """
        from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession
    """,
    "onnxruntime/capi/__init__.py": "",
    "onnxruntime/capi/onnxruntime_inference_collection.py": """
        import pretended
        class InferenceSession:
            def __init__(self, path):
                pretended.wake()
    """,
    "cuda/__init__.py": "",
    "cuda/bindings/__init__.py": "",
    "cuda/bindings/driver.py": """
        import pretended
        def cuInit(flags):
            pretended.wake()
            return (0,)
    """,
    "triton/__init__.py": "",
    "triton/backends/__init__.py": "",
    "triton/backends/nvidia/__init__.py": "",
    "triton/backends/nvidia/driver.py": """
        import pretended
        class CudaDriver:
            @staticmethod
            def is_active():
                pretended.wake()
                return True
    """,
    "pynvml.py": """
        def nvmlInit():
            pass
        def nvmlDeviceGetCount():
            return 2
    """,
    "geometric/__init__.py": """
        import geometric.plain
        from geometric import typing
    """,
    "geometric/plain.py": "",
    "geometric/typing.py": """
        import torch
        MAJOR = int(torch.__version__.split('.')[0])
        try:
            import geometric.plain
            NO_MKL = 'USE_MKL=OFF' in torch.__config__.show()
        except ImportError:
            NO_MKL = bool(MAJOR)
        TWO = max(1, MAJOR)
    """,
    "failing.py": """
        import pretended
        pretended.wake()
        raise ImportError("no such device")
    """,
    "nested/__init__.py": """
        import os
        from nested import deep
        import wave
    """,
    "nested/deep.py": """
        import pretended
        import sndhdr_like
        NUMBER = 1
        WOKEN = pretended.wake()

        def never():
            pretended.wake()
    """,
    "sndhdr_like.py": "",
    "several.py": """
        import pretended
        import plain_one
        print("one")
        pretended.wake()
        print("two")
        import plain_two
    """,
    "plain_one.py": "",
    "plain_two.py": "",
}


LIBRARIES = ("cupy", "numba", "jax", "onnxruntime", "cuda", "triton", "pynvml.py", "geometric")


def write(folder: Path) -> dict[str, str]:
    """Put the libraries into a site-packages of the folder, the rest beside it; gives the environment that finds them."""
    for name, source in FILES.items():
        path = (folder / "site-packages" if name.split("/")[0] in LIBRARIES else folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source).lstrip())
    return {"PYTHONPATH": str(folder / "site-packages")}
