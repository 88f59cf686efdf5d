"""Compiled functions, graphs and scripted functions in a rerouted worker: GPU work that only a GPU can do is refused by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rerouted import REAL, Ran

HEAD = """
    import torch, cudaguard
    from torch.utils.data import DataLoader, Dataset

    def double(x, more=None):
        return x * 2

    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.two = torch.nn.Parameter(torch.full((1,), 2.0), requires_grad=False)
        def forward(self, x):
            return x * self.two

    def batches(work):
        class Rows(Dataset):
            def __len__(self): return 2
            def __getitem__(self, i): return work(float(i))
        return list(DataLoader(Rows(), batch_size=None, num_workers=1, multiprocessing_context="fork", timeout=60))

    def refusal(work):
        try:
            batches(work)
        except cudaguard.CudaForkError as error:
            return error.finding["touch"]["call"]
        return "nothing was refused"

    def on_gpu(i): return torch.full((1,), i).cuda()
"""
COMPILED_HERE = {
    "a function": ("torch.compile(double)(on_gpu(i))", "torch.compile(double)"),
    "by keyword": ("torch.compile(double)(torch.ones(1), more=on_gpu(i))", "torch.compile(double)"),
    "in a list": ("torch.compile(double)(torch.ones(1), [on_gpu(i)])", "torch.compile(double)"),
    "all of it": ("torch.compile(double, fullgraph=True, mode='reduce-overhead')(on_gpu(i))", "torch.compile(double)"),
    "a decorator": ("torch.compile(dynamic=True)(double)(on_gpu(i))", "torch.compile(double)"),
    "a module": ("torch.compile(Twice().cuda())(torch.ones(1))", "torch.compile(Twice)"),
    "a module of torch's": ("torch.compile(torch.nn.ReLU())(on_gpu(i))", "torch.compile(ReLU)"),
    "in place": ("(net := Twice().cuda()).compile() or net(on_gpu(i))", "torch.compile(Twice)"),
    "a graph": ("torch.cuda.CUDAGraph()", "torch.cuda.CUDAGraph"),
    "a capture": ("torch.cuda.graph(None)", "torch.cuda.graph"),
    "graphed callables": ("torch.cuda.make_graphed_callables(double, (on_gpu(i),))", "torch.cuda.make_graphed_callables"),
}


@pytest.mark.parametrize("form", COMPILED_HERE)
def test_what_is_compiled_for_a_gpu_is_refused(reroute: Callable[..., Ran], form: str) -> None:
    work, call = COMPILED_HERE[form]
    ran = reroute(HEAD + f'\n    warm = torch.zeros(1, device="cuda")\n    print("CALL", refusal(lambda i: {work}))\n').ok()
    assert f"CALL {call}\n" in ran.out
    (error,) = [finding for finding in ran.report if finding["severity"] == "error"]
    assert error["slug"] == "fork-after-init" and error["touch"]["call"] == call and f"lambda i: {work}" in error["touch"]["code"]


def test_what_is_compiled_works_on_the_cpu(reroute: Callable[..., Ran]) -> None:
    ran = reroute(
        HEAD
        + """
    def work(i):
        x = torch.full((1,), i)
        on_gpu(i)  # the shadow is at work in this worker
        whole = torch.compile(double, fullgraph=True, mode="reduce-overhead")
        (in_place := Twice()).compile()
        return [f(x) for f in (torch.compile(double), whole, torch.compile(Twice()), in_place)]

    warm = torch.zeros(1, device="cuda")
    print("RESULT", [[x.item() for x in row if x.device.type == "cpu"] for row in batches(work)])
    """
    ).ok()
    assert "RESULT [[0.0, 0.0, 0.0, 0.0], [2.0, 2.0, 2.0, 2.0]]" in ran.out
    assert "error" not in {finding["severity"] for finding in ran.report}


# torch.compile itself makes nothing of it on the simulated device, so these go to dynamo, as a real GPU's program would.
IN_PARENT = """
    import torch._dynamo
    def compiled(model, **options): return torch._dynamo.optimize("eager", **options)(model)
    warm = torch.zeros(1, device="cuda")
    function, whole, module = compiled(double), compiled(double, nopython=True), compiled(Twice())
    assert [f(torch.ones(1)).item() for f in (function, whole, module)] == [2.0] * 3
    assert [f(torch.ones(1, device="cpu")).item() for f in (function, whole, module)] == [2.0] * 3
"""


@pytest.mark.parametrize(("name", "call"), [("function", "double"), ("whole", "double"), ("module", "Twice")])
def test_what_the_parent_compiled_is_refused_on_a_gpu_alone(reroute: Callable[..., Ran], name: str, call: str) -> None:
    ran = reroute(
        HEAD
        + IN_PARENT
        + f"""
    def either(i): return {name}(torch.full((1,), i)), double(on_gpu(i))

    print("RESULT", [(a.item(), a.device.type, b.device.type) for a, b in batches(either)])
    print("CALL", refusal(lambda i: {name}(on_gpu(i))))
    print("AFTER", {name}(torch.ones(1)).item())  # the parent's own
    """
    ).ok()
    assert "RESULT [(0.0, 'cpu', 'cuda'), (2.0, 'cpu', 'cuda')]" in ran.out
    assert f"CALL torch.compile({call})\n" in ran.out
    assert "AFTER 2.0" in ran.out


def test_what_torch_compiles_for_itself_still_runs(reroute: Callable[..., Ran]) -> None:
    ran = reroute(
        HEAD
        + """
    def work(i):
        try:
            torch.compile(double)(on_gpu(i))
        except cudaguard.CudaForkError:
            x = on_gpu(i)
            return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    warm = torch.zeros(1, device="cuda")
    print("RESULT", [(x.item(), x.device.type) for x in batches(work)])
    """
    ).ok()
    assert "RESULT [(-1.0, 'cuda'), (2.0, 'cuda')]" in ran.out


@pytest.mark.skipif(REAL, reason="makes a graph without capturing it, which the real class does not allow")
def test_a_graph_that_the_parent_captured_is_refused(reroute: Callable[..., Ran]) -> None:
    ran = reroute(
        HEAD
        + """
    graph = (torch._C._CUDAGraph if torch.version.cuda else object).__new__(torch.cuda.CUDAGraph)  # as little as each build allows
    warm = torch.zeros(1, device="cuda")
    print("CALL", refusal(lambda i: graph.replay()))
    """
    ).ok()
    assert "CALL torch.cuda.CUDAGraph.replay" in ran.out


SCRIPTED = """
    @torch.jit.script
    def scripted(x, by: int):
        return x * by

    @torch.jit.script
    def several(x):
        return x + 1, [x + 2], {"three": x + 3}

    traced = torch.jit.trace(double, torch.ones(1))
    net = torch.jit.script(Twice())
"""


def test_scripted_functions_say_where_their_results_are(reroute: Callable[..., Ran]) -> None:
    ran = reroute(
        HEAD
        + SCRIPTED
        + """
    def work(i):
        x = on_gpu(i)
        one, (two,), three = several(x)
        found = [scripted(x, 2), one, two, three["three"], traced(x), torch.jit.script(Twice()).cuda()(x), scripted(x=x, by=3)]
        assert all(y.device == torch.device("cuda:0") for y in found), found
        cpu = [scripted(torch.ones(1), 2), traced(torch.ones(1)), net(torch.ones(1))]
        assert all(y.device.type == "cpu" and y.item() == 2 for y in cpu), cpu
        try:
            torch.jit.script(double)  # scripting itself is as before
            scripted(x, 'two')
        except RuntimeError as error:
            assert "Expected a value of type 'int'" in str(error), error
        return found

    warm = torch.zeros(1, device="cuda")
    rows = batches(work)
    assert all(y.is_cuda for row in rows for y in row)
    print("RESULT", [[y.item() for y in row] for row in rows])
    """
    ).ok()
    assert "RESULT [[0.0, 1.0, 2.0, 3.0, 0.0, 0.0, 0.0], [2.0, 2.0, 3.0, 4.0, 2.0, 2.0, 3.0]]" in ran.out


def test_a_script_module_is_loaded_to_the_cpu_in_the_worker(reroute: Callable[..., Ran]) -> None:
    """Its file is read in C++, which no replacement of a Python function reaches."""
    ran = reroute(
        HEAD
        + """
    torch.jit.script(torch.nn.Linear(2, 1)).save("net.pt")

    def work(i):
        net = torch.jit.load("net.pt", map_location="cuda:0")
        assert all(p.is_cuda for p in net.parameters())
        kept = torch.jit.load("net.pt", torch.device("cpu"))(torch.ones(2))
        assert not kept.is_cuda
        return net(torch.ones(2, device="cuda")).detach(), kept.detach()

    warm = torch.zeros(1, device="cuda")
    for on_gpu, on_cpu in batches(work):
        assert on_gpu.is_cuda and not on_cpu.is_cuda and torch.equal(on_gpu.cpu(), on_cpu)
    """
    ).ok()
    (line,) = [line for line in ran.err.splitlines() if line.startswith("cudaguard: rerouted") and "torch.jit.load" in line]  # torch 2.14 warns of it
    assert 'write `net = torch.jit.load("net.pt", map_location="cpu")` there' in line


def test_a_scripted_function_refuses_two_devices(reroute: Callable[..., Ran]) -> None:
    ran = reroute(
        HEAD
        + """
    @torch.jit.script
    def add(x, y):
        return x + y

    def work(i):
        try:
            add(on_gpu(i), torch.ones(1))
        except RuntimeError as error:
            return "Expected all tensors to be on the same device" in str(error)

    warm = torch.zeros(1, device="cuda")
    print("RESULT", batches(work))
    """
    ).ok()
    assert "RESULT [True, True]" in ran.out
