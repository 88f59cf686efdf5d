"""Where other CUDA libraries wake the driver, so that the origin is the line that called them.

Python functions, and methods of classes written in Python.
NVML (pynvml) is not here: it asks the kernel's module, and wakes nothing. What C code does at other calls lies between two probes.
"""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any

from ._patch import Patches
from .doors import door, watch

# Functions that users call, named as they write them.
CALLS = {
    "cupy": "array asarray arange zeros ones empty full eye linspace load fromfile show_config",
    "cupy.cuda": "is_available",
    "cupy.random": "seed rand randn random normal uniform randint",
    "cuda.bindings.driver": "cuInit",
    "cuda.bindings.runtime": "cudaGetDeviceCount cudaGetDevice cudaSetDevice cudaMalloc cudaFree cudaStreamCreate cudaGetDeviceProperties",
    "faiss": "get_num_gpus index_cpu_to_gpu index_cpu_to_all_gpus index_cpu_to_gpus_list knn_gpu",
    "pycuda.driver": "init",
    "warp": "init",
}
# Where all calls of a library pass when the first of them wakes the driver. The name is read from the user's line.
GATES = {
    "numba.cuda.cudadrv.driver": "Driver.ensure_initialized",
    "jax._src.xla_bridge": "backends",
    "triton.backends.nvidia.driver": "CudaUtils.__init__ CudaDriver.__init__ CudaDriver.is_active",
    "cuda.core._device": "Device.__new__",
    "cuda.core.experimental._device": "Device.__new__",
    "faiss.swigfaiss": "StandardGpuResources.__init__",
    "faiss.swigfaiss_avx2": "StandardGpuResources.__init__",
    "faiss.swigfaiss_avx512": "StandardGpuResources.__init__",
    "onnxruntime.capi.onnxruntime_inference_collection": "InferenceSession.__init__",
    "tensorflow.python.eager.context": "Context.ensure_initialized Context._initialize_physical_devices",
    "nvidia.dali.pipeline": "Pipeline.build",
}
MODULES = (*CALLS, *GATES)


def install(patches: Patches, module: str) -> None:
    """Watch the entries of one module, which is loaded."""
    for name in CALLS.get(module, "").split():
        watch(patches, module, name, f"{module}.{name}")
    for path in GATES.get(module, "").split():
        owner, _, name = path.rpartition(".")
        if owner:
            _method(patches, module, owner, name)
        else:
            watch(patches, module, name)


def _method(patches: Patches, module: str, owner: str, name: str) -> None:
    """A method of a class's own. A class of C code, as the newest cuda.core has, cannot be told."""
    kind: Any = getattr(sys.modules[module], owner, None)
    original = vars(kind).get(name) if isinstance(kind, type) else None
    static = isinstance(original, staticmethod) or name == "__new__"
    function = getattr(original, "__func__", original)
    if not isinstance(function, FunctionType):
        patches.unwatched.append(f"{module}.{owner}.{name}")
    elif static:
        patches.put_static(kind, name, door(function))
    else:
        patches.put(kind, name, door(function))
