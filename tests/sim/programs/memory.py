"""Storages, pinned memory, threads."""

import threading

import torch
from _show import show

x = torch.arange(4.0, device="cuda")
show("storage", lambda: [x.untyped_storage().device, len(x.untyped_storage()), x.storage().device, x.untyped_storage().get_device()])
show("storage made", lambda: [torch.UntypedStorage(4, device="cuda").device, torch.TypedStorage(2, dtype=torch.float32, device="cuda").device])
show(
    "storage moved",
    lambda: [
        x.untyped_storage().cpu().device,
        torch.ones(1).untyped_storage().cuda().device,
        torch.ones(1).untyped_storage().to(device="cuda").device,
    ],
)
show("storage clone", lambda: [x.untyped_storage().clone().device, x.untyped_storage().is_shared(), x.untyped_storage().is_pinned()])
show("storage repr", lambda: repr(x.untyped_storage()).splitlines()[-1])
show("set_", lambda: torch.empty(0, device="cuda").set_(x.untyped_storage(), 1, (2,), (1,)))
show("same storage", lambda: x[1:].untyped_storage().data_ptr() == x.untyped_storage().data_ptr())
show("storage items", lambda: x.storage().tolist())
show("pin", lambda: [torch.ones(2).pin_memory(), torch.ones(2).pin_memory().is_pinned(), torch.ones(2).is_pinned()])
show("pin twice", lambda: (lambda p: p.pin_memory() is p)(torch.ones(2).pin_memory()))
show("pin keeps", lambda: (lambda p: [p[1:].is_pinned(), (p + 1).is_pinned(), p.clone().is_pinned()])(torch.ones(2).pin_memory()))
show(
    "pinned factories",
    lambda: [torch.empty(2, pin_memory=True).is_pinned(), torch.zeros(2, pin_memory=True), torch.tensor([1.0], pin_memory=True).is_pinned()],
)
show("pin cuda", lambda: x.pin_memory())
show("pin cuda factory", lambda: torch.zeros(2, device="cuda", pin_memory=True))
show("pinned to cuda", lambda: torch.ones(2).pin_memory().cuda(non_blocking=True))
show("pin sparse", lambda: torch.eye(2).to_sparse().pin_memory().device)
show("pinned storage", lambda: torch.ones(2).pin_memory().untyped_storage().is_pinned())
show("loader", lambda: [[b.is_pinned(), b.device] for b in torch.utils.data.DataLoader(torch.arange(4.0), batch_size=2, pin_memory=True)])
show("loader of cuda", lambda: [b.device for b in torch.utils.data.DataLoader(x, batch_size=2)])
show("loader of cuda pinned", lambda: [b.device for b in torch.utils.data.DataLoader(x, batch_size=2, pin_memory=True)])
show("collate", lambda: torch.utils.data.default_collate([{"a": x, "b": 1}, {"a": x, "b": 2}]))
show(
    "legacy",
    lambda: [torch.cuda.FloatTensor([1.0, 2.0]), torch.cuda.LongTensor([1]), torch.cuda.FloatTensor(2, 3).shape, torch.cuda.FloatTensor().shape],
)
show("from_dlpack", lambda: torch.from_dlpack(x))
show("cuda array interface", lambda: sorted(x.__cuda_array_interface__))
show("graph", lambda: type(torch.cuda.CUDAGraph()).__name__)


def in_thread():
    found = []

    def work():
        found.append(torch.zeros(1, device="cuda"))
        found.append(x + 1)
        found.append(torch.cuda.current_device())
        try:
            x + torch.ones(4)
        except RuntimeError as raised:
            found.append(type(raised).__name__)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found


show("thread", in_thread)
show("jit script", lambda: torch.jit.script(torch.nn.Linear(4, 1)).cuda()(x[None]).device)
show("jit trace", lambda: torch.jit.trace(torch.nn.ReLU(), x)(x))
