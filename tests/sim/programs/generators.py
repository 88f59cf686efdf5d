"""Random numbers: seeds, states, generators, and that one device's numbers leave another's alone."""

import torch
from _show import show


def same(draw, seed):
    seed()
    first = draw()
    seed()
    return torch.equal(first, draw())


def cpu_untouched():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    torch.rand(100, device="cuda")
    torch.nn.functional.dropout(torch.ones(100, device="cuda"), 0.5)
    torch.empty(10, device="cuda").normal_()
    torch.nn.init.xavier_uniform_(torch.empty(3, 3, device="cuda"))
    return torch.equal(expected, torch.rand(3))


def state():
    kept = torch.cuda.get_rng_state()
    first = torch.rand(2, device="cuda")
    torch.cuda.set_rng_state(kept)
    return [kept.device, kept.dtype, torch.equal(first, torch.rand(2, device="cuda"))]


def forked():
    with torch.random.fork_rng(devices=[0]):
        first = torch.rand(2, device="cuda")
    return torch.equal(first, torch.rand(2, device="cuda"))


on = {"device": "cuda"}
show("seed before init", lambda: [torch.cuda.manual_seed(3), torch.cuda.is_initialized()])
show("seed kept until init", lambda: torch.cuda.initial_seed())
for name, draw in {
    "rand": lambda: torch.rand(3, **on), "randn": lambda: torch.randn(3, **on), "randint": lambda: torch.randint(9, (9,), **on),
    "randperm": lambda: torch.randperm(20, **on), "normal": lambda: torch.normal(torch.zeros(3, **on), 1.0),
    "rand_like": lambda: torch.rand_like(torch.ones(3, **on)),
    "normal_": lambda: torch.empty(3, **on).normal_(), "bernoulli": lambda: torch.bernoulli(torch.full((9,), 0.5, **on)),
    "multinomial": lambda: torch.multinomial(torch.ones(9, **on), 3), "dropout": lambda: torch.nn.functional.dropout(torch.ones(20, **on)),
    "distribution": lambda: torch.distributions.Normal(torch.zeros(2, **on), 1.0).sample(),
    "init": lambda: torch.nn.init.normal_(torch.empty(3, **on)),
}.items():  # fmt: skip
    show(f"{name} manual_seed", lambda draw=draw: same(draw, lambda: torch.manual_seed(1)))
    show(f"{name} cuda seed", lambda draw=draw: same(draw, lambda: torch.cuda.manual_seed(1)))
show("cpu untouched", cpu_untouched)
show("state", state)
show("fork_rng", forked)
g = torch.Generator(device="cuda")
show("generator", lambda: [g.device, isinstance(g, torch.Generator), type(g).__name__, g.manual_seed(5) is g, g.initial_seed()])
show("generator draws", lambda: same(lambda: torch.rand(3, generator=g, **on), lambda: g.manual_seed(5)))
show("generator in place", lambda: torch.empty(2, **on).normal_(generator=g).device)
show("generator state", lambda: g.get_state().device)
show("cpu generator on cuda", lambda: torch.rand(1, generator=torch.Generator(), **on))
show("cuda generator on cpu", lambda: torch.rand(1, generator=g))
show("cpu generator", lambda: [torch.Generator().device, torch.Generator("cpu").device, torch.default_generator.device])
show("default generators", lambda: [torch.cuda.default_generators[0].device, torch.cuda.default_generators[0].manual_seed(1).initial_seed()])
show("random_split", lambda: [len(part) for part in torch.utils.data.random_split(range(6), [4, 2])])
