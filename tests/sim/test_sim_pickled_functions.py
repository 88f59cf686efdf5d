"""Functions of torch's that travel by name."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

Python = Callable[..., "subprocess.CompletedProcess[str]"]

HERE = {"CUDAGUARD": "off", "CUDAGUARD_SIMULATE": "2", "PYTHONPATH": str(Path(__file__).parent / "programs")}


PICKLED = """
import operator, pickle, torch
names = '''zeros ones tensor as_tensor empty full arange rand randn from_dlpack vmap fft.fftfreq func.vmap nested.nested_tensor
Tensor.cuda Tensor.to Tensor.cpu Tensor.type Tensor.new_zeros cuda.is_available cuda.synchronize cuda.Stream cuda.Event'''.split()
for name in names:
    function = operator.attrgetter(name)(torch)
    assert function.__name__ == name.rpartition(".")[2] or name == "fft.fftfreq", name
    for protocol in (2, 4, 5):
        assert pickle.loads(pickle.dumps(function, protocol)) is function, name
print("all")
"""


def test_functions_of_torch_pickle_as_on_a_gpu(python: Python) -> None:
    """`transform=torch.as_tensor` travels to a spawned worker by name, so the replacement must have the name under which it stands."""
    done = python(PICKLED, **HERE)
    assert done.stdout == "all\n", done.stderr
