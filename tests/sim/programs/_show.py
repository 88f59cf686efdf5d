"""Prints ``name: value`` for the programs of the conformance suite. Needs torch alone, so that stock PyTorch can run them too."""

import torch


def text(value):
    """Something that two machines can be compared by: devices, types and numbers, no addresses."""
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            return f"nested {value.device} [" + ", ".join(text(part) for part in value.unbind()) + "]"
        dense = value.detach().to_dense() if value.layout is not torch.strided else value.detach()
        return f"{value.device} {str(value.dtype)[6:]} {dense.cpu().tolist()}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(text(item) for item in value) + "]"
    return str(value)


def error(raised):
    return f"!! {type(raised).__name__}: {(str(raised).splitlines() or [''])[0]}"


def show(name, function):
    try:
        line = text(function())
    except Exception as raised:
        line = error(raised)
    print(f"{name}: {line}", flush=True)
