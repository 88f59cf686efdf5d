"""The sentences of PyTorch and of the driver, word for word: other tools match on them."""

from __future__ import annotations

import torch

REINIT = "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method"
_TAIL = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect."
    "\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)


def driver_error(reason: str) -> RuntimeError:
    """What torch raises for an error code of the CUDA runtime; its class exists from 2.8 on and is a RuntimeError."""
    kind = getattr(torch, "AcceleratorError", RuntimeError)
    error: RuntimeError = kind(f"CUDA error: {reason}{_TAIL}")
    return error


def not_simulated(what: str, instead: str) -> RuntimeError:
    return RuntimeError(f"{what} is not simulated: {instead}")


def other_grad(grad: torch.Tensor, tensor: torch.Tensor) -> RuntimeError:
    """``tensor.grad = grad`` across devices."""
    if grad.device.type != tensor.device.type:
        return RuntimeError(
            f"attempting to assign a gradient with device type '{grad.device.type}' to a tensor with device type '{tensor.device.type}'. "
            "Please ensure that the gradient and the tensor are on the same device"
        )
    return RuntimeError(
        f"attempting to assign a gradient located on device with index '{grad.device.index}' to a tensor located on device with index "
        f"'{tensor.device.index}'. Please ensure that the gradient and the tensor are on the same device"
    )


def two_devices(first: object, second: object) -> RuntimeError:
    return RuntimeError(f"Expected all tensors to be on the same device, but found at least two devices, {first} and {second}!")


def wrapper_refuses(argument: str, found: object, common: object, kernel: str) -> RuntimeError:
    """What the generated wrapper of a kernel says."""
    return RuntimeError(
        f"Expected all tensors to be on the same device, but got {argument} is on {found}, different from other tensors on "
        f"{common} (when checking argument in method wrapper_{kernel})"
    )


def not_beside(name: str, wanted: object, found: object) -> RuntimeError:
    """What a recurrent layer says."""
    return RuntimeError(f"Input and {name} tensors are not at the same device, found input tensor at {wanted} and {name} tensor at {found}")
