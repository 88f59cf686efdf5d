"""Random numbers of a device: each has a generator of its own, and drawing from it leaves the CPU's alone."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch

from cudaguard._shadow import _dispatch, _tables
from cudaguard._shadow._devices import Device, arrive_raw, cuda_index
from cudaguard._shadow._patch import put
from cudaguard._shadow._state import state

CGenerator = torch._C.Generator

# Calls on a shadow that draw numbers: in torch and torch.Tensor, and everything of torch.nn.init.
IN_TORCH = """rand_like randn_like randint_like normal bernoulli multinomial poisson dropout alpha_dropout feature_dropout feature_alpha_dropout rrelu
binomial native_dropout _standard_gamma _sample_dirichlet""".split()
IN_TENSOR = "normal_ uniform_ random_ exponential_ geometric_ cauchy_ log_normal_ bernoulli_ bernoulli multinomial".split()
IN_FUNCTIONAL = """dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout rrelu gumbel_softmax scaled_dot_product_attention
multi_head_attention_forward fractional_max_pool2d fractional_max_pool3d""".split()
IN_INIT = "uniform_ normal_ trunc_normal_ xavier_uniform_ xavier_normal_ kaiming_uniform_ kaiming_normal_ orthogonal_ sparse_".split()


class ShadowGenerator(CGenerator):
    """A CPU generator that is on ``cuda:i``."""

    _device = Device("cuda")

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._device

    _offset = 0

    def get_offset(self) -> int:
        state.policy.raw("torch.Generator.get_offset")
        return self._offset

    def set_offset(self, offset: int) -> ShadowGenerator:
        state.policy.raw("torch.Generator.set_offset")
        self._offset = offset
        return self

    def __reduce__(self) -> Any:
        seed, _, numbers = super().__reduce__()[2]
        return torch.Generator, (self.device,), (seed, None, numbers)


def _asking(name: str) -> Any:
    """A method that asks the driver whether a graph is being captured before it does anything: in a forked child that fails."""
    real = getattr(CGenerator, name)

    @functools.wraps(real)
    def method(self: ShadowGenerator, *args: Any) -> Any:
        state.policy.raw(f"torch.Generator.{name}")
        return real(self, *args)

    return method


for _name in ("get_state", "set_state", "clone_state", "manual_seed", "seed"):
    if hasattr(CGenerator, _name):  # clone_state came with torch 2.4
        setattr(ShadowGenerator, _name, _asking(_name))
ShadowGenerator.__name__ = ShadowGenerator.__qualname__ = "Generator"
ShadowGenerator.__module__ = "torch._C"


class _Meta(type(CGenerator)):  # type: ignore[misc]
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, CGenerator)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, CGenerator)


class Generator(CGenerator, metaclass=_Meta):
    """``torch.Generator``: the C class where the CPU is meant, ours where CUDA is."""

    def __new__(cls, device: Any = None) -> Any:
        index = None if device is None else cuda_index(device)
        if index is None:
            return CGenerator() if device is None else CGenerator(device)
        arrive_raw(device, "torch.Generator")
        return make(Device(device).index)


Generator.__module__ = "torch"


def make(index: int | None) -> ShadowGenerator:
    """A generator of a device; one that was asked for without an index says no index, as torch's does."""
    made = ShadowGenerator()
    made._device = Device("cuda") if index is None else Device("cuda", index)
    return made


def default_of(place: int) -> Any:
    """The device's own generator; torch sets them when it initialises."""
    defaults = torch.cuda.default_generators
    return defaults[place] if place < len(defaults) else _spare.setdefault(place, make(place))


_spare: dict[int, ShadowGenerator] = {}


def check(generator: Any, place: int | None) -> None:
    """Refuse a generator of another device type, as torch's kernels do."""
    found, wanted = getattr(generator, "device", None), "cpu" if place is None else "cuda"
    if found is not None and found.type != wanted:
        raise RuntimeError(f"Expected a '{wanted}' device type for generator but found '{found.type}'")


@contextlib.contextmanager
def drawing(place: int, kwargs: dict[str, Any]) -> Iterator[None]:
    """Draw from the device's generator, or from the one given: the CPU's default one lends its place meanwhile."""
    given = kwargs.get("generator")
    if given is not None:
        check(given, place)
        yield
        return
    own, cpu = default_of(place), torch.default_generator
    kept = cpu.get_state()
    cpu.set_state(CGenerator.get_state(own))
    try:
        yield
    finally:
        CGenerator.set_state(own, cpu.get_state())
        cpu.set_state(kept)


def _draw(cls: Any, func: Any, types: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with drawing(cls._place, kwargs):
        return _dispatch.ordinary(cls, func, types, args, kwargs)


def seed_defaults() -> None:
    """At initialisation: one generator per device, from which torch's queued seeds start."""
    put(torch.cuda, "default_generators", tuple(make(i) for i in range(state.policy.count)))


def install() -> None:
    found = [*_tables.packed(IN_TORCH), *_tables.methods(IN_TENSOR), *_tables.methods(IN_FUNCTIONAL, torch.nn.functional)]
    found += [*_tables.methods(IN_INIT, torch.nn.init), *_tables.methods(IN_FUNCTIONAL, torch._C._nn)]
    _dispatch.special.update(dict.fromkeys(found, _draw))
    put(torch, "Generator", Generator)
