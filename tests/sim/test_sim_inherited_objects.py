"""What a forked child inherits besides tensors, and what of it never reaches the driver; and functions of torch's that travel by name."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

Python = Callable[..., "subprocess.CompletedProcess[str]"]
RAW = "!! AcceleratorError: CUDA error: initialization error"

INHERITED = """
import json, torch
from _fork import in_child
start, end, fresh = (torch.cuda.Event(enable_timing=True) for _ in range(3))
start.record(); end.record()
stream, x = torch.cuda.Stream(), torch.arange(4.0, device="cuda")
uses = {
    "event.query": end.query, "event.synchronize": end.synchronize, "event.wait": lambda: end.wait(stream),
    "event.elapsed_time": lambda: start.elapsed_time(end) >= 0, "stream.query": stream.query, "stream.synchronize": stream.synchronize,
    "fresh.query": fresh.query, "fresh.synchronize": fresh.synchronize, "x.numpy": x.numpy, "x.__array__": x.__array__,
    "x.numpy(force)": lambda: x.numpy(force=True).tolist(),
}
here = {name: repr(use()) for name, use in uses.items() if name not in ("x.numpy", "x.__array__")}
print(json.dumps([here, {name: in_child(use) for name, use in uses.items()}]))
"""


HERE = {"CUDAGUARD": "off", "CUDAGUARD_SIMULATE": "2", "PYTHONPATH": str(Path(__file__).parent / "programs")}


def test_a_recorded_event_and_a_stream_are_dead_in_a_forked_child(python: Python) -> None:
    """The driver is asked about both. An event that was never recorded is none yet, and `numpy` is refused before anybody is asked."""
    done = python(INHERITED, **HERE)
    assert done.returncode == 0, done.stderr
    here, child = json.loads(done.stdout)
    assert here["event.query"] == here["stream.query"] == "True"
    assert here["x.numpy(force)"] == "[0.0, 1.0, 2.0, 3.0]"
    dead = [name for name in child if name.startswith(("event.", "stream.")) or "force" in name]
    assert {name: child[name] for name in dead} == dict.fromkeys(dead, RAW)
    assert (child["fresh.query"], child["fresh.synchronize"]) == ("True", "None")
    for name in ("x.numpy", "x.__array__"):
        assert child[name].startswith("!! TypeError: can't convert cuda:0 device type tensor to numpy.")


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
