"""Functions that make a tensor on a device named by keyword: torch.zeros, torch.tensor, zeros_like, Tensor.new_zeros, …"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.utils._device

from cudaguard._shadow._classes import Shadow, Tensor, place_of, tag
from cudaguard._shadow._devices import CPU, arrive, arrive_raw, cuda_index
from cudaguard._shadow._dispatch import run
from cudaguard._shadow._generators import check as check_generator
from cudaguard._shadow._generators import drawing
from cudaguard._shadow._moves import pin
from cudaguard._shadow._patch import dress, put, wrap
from cudaguard._shadow._state import settle, state

LIKE = "empty_like zeros_like ones_like full_like rand_like randn_like randint_like".split()
MORE = ["normal", "full_like", "from_file", "nested_tensor_from_jagged"]  # take a device, but are not in torch's list
NEW = "new_tensor new_empty new_zeros new_ones new_full new_empty_strided".split()
SHARING = ("as_tensor", "asarray")  # may return their argument or share its memory
# Take a tensor as mere data; of two, the last (the values) says where.
DATA = """tensor as_tensor asarray sparse_coo_tensor sparse_compressed_tensor sparse_csr_tensor sparse_csc_tensor sparse_bsr_tensor
sparse_bsc_tensor""".split()
RANDOM = "rand randn randint randperm rand_like randn_like randint_like normal".split()
wrappers: dict[Any, Any] = {}  # torch's function -> what stands for it here


def _make(original: Any, name: str) -> Any:
    elsewhere = _elsewhere(original, name)
    if name in DATA or name in RANDOM or name in NEW:  # these look at their first argument
        return elsewhere

    def factory(*args: Any, **kwargs: Any) -> Any:
        # On the way of every CPU tensor that is made in this process, so no more than this.
        if kwargs.get("device") is None and not kwargs.get("pin_memory"):
            return original(*args, **kwargs)
        return elsewhere(*args, **kwargs)

    return factory


def _elsewhere(original: Any, name: str) -> Any:
    random, sharing = name in RANDOM, name in SHARING

    def elsewhere(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is None:
            return _here(original, random, args, kwargs)
        if kwargs.get("pin_memory"):
            return _pinned(original, args, kwargs)
        place = arrive(device)
        if place is None:
            return _land(run(original, (), args, kwargs), None, sharing)
        kwargs["device"] = CPU
        if random:
            with drawing(place, kwargs):
                return _land(run(original, (), args, kwargs), place, sharing)
        return _land(run(original, (), args, kwargs), place, sharing)

    return elsewhere


def _here(original: Any, random: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """No device said: the default device's mode, or the shadow among the arguments, decides."""
    if random and kwargs.get("generator") is not None and not torch._C._len_torch_function_stack():  # no default device
        check_generator(kwargs["generator"], place_of(args[0]) if args else None)
    if kwargs.get("pin_memory"):
        return _pinned(original, args, kwargs)
    result = original(*args, **kwargs)
    if type(result) is Tensor:  # torch.tensor(x) takes x as mere data, so no dispatch came our way
        place = next((arg._place for arg in reversed(args) if isinstance(arg, Shadow)), None)
        return result if place is None else tag(result, place)
    return result


def _land(result: Any, place: int | None, sharing: bool) -> Any:
    """The result belongs on `place`. One that shares memory with something elsewhere is copied, as crossing does."""
    here = place_of(result)
    if sharing and here != place:
        with torch._C.DisableTorchFunctionSubclass():
            result = result.clone()
    return result if place_of(result) == place else tag(result, place)


def _pinned(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if cuda_index(kwargs.get("device")) is not None:
        raise RuntimeError("Only dense CPU tensors can be pinned")
    settle()
    state.policy.raw("torch.Tensor.pin_memory")
    return pin(original(*args, **{**kwargs, "pin_memory": False}))


def _strided_nested(original: Any) -> Any:
    """Strided nested tensors are built by C code that never asks torch's lazy initialisation."""
    jagged = getattr(torch, "jagged", None)

    def nested(tensor_list: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("layout") is jagged and jagged is not None:
            return original(tensor_list, *args, **kwargs)  # made of ordinary factories, each of which asks
        device = kwargs.get("device")
        place = _first_place(tensor_list) if device is None else arrive_raw(device, "torch.nested.nested_tensor")
        if place is None:
            return original(tensor_list, *args, **kwargs)
        kwargs["device"] = CPU
        return tag(run(original, (), (tensor_list, *args), kwargs), place)

    return nested


def _first_place(tensor_list: Any) -> int | None:
    return place_of(tensor_list[0]) if isinstance(tensor_list, (list, tuple)) and tensor_list else None


def _default_device(original: Any) -> Any:
    constructors = torch.utils._device._device_constructors()

    def __torch_function__(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in constructors and kwargs.get("device") is None:
            kwargs["device"] = self.device
        return wrappers.get(func, func)(*args, **kwargs)

    return __torch_function__


def install() -> None:
    constructors = torch.utils._device._device_constructors()  # cached by torch: must be computed before anything is replaced
    nested = {torch.nested.nested_tensor, torch.nested.as_nested_tensor}
    for original in constructors - nested:
        name = original.__name__
        owner = torch.fft if name.startswith("fft_") or name in ("fftfreq", "rfftfreq") else torch
        _replace(owner, name.removeprefix("fft_"), original)
    for name in (*LIKE, *MORE):
        if hasattr(torch, name):
            _replace(torch, name, getattr(torch, name))
    for name in NEW:
        wrap(Tensor, name, functools.partial(_make, name=name))
    for original in nested:
        made = dress(_strided_nested(original), original)
        wrappers[original] = made
        put(torch.nested, original.__name__, made)
    wrap(torch.utils._device.DeviceContext, "__torch_function__", _default_device)


def _replace(owner: Any, name: str, original: Any) -> None:
    made = dress(_make(original, name), original)
    wrappers[original] = made
    put(owner, name, made)
