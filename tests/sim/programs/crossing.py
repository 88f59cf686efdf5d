"""CUDA tensors through queues and loaders between healthy processes."""

import torch
import torch.multiprocessing as mp
from _show import error, show, text


def echo(inbox, outbox):
    """Say what arrived, then send back something of our own."""
    for _ in range(6):
        got = inbox.get(timeout=60)
        if got is None:
            break
        outbox.put([text(got), torch.cuda.is_initialized()])
        if isinstance(got, torch.Tensor) and not got.requires_grad:
            got.add_(1)
            outbox.put("written")
    outbox.put("done")
    inbox.get(timeout=60)


def resend(inbox, outbox):
    got = inbox.get(timeout=60)
    try:
        from multiprocessing.reduction import ForkingPickler

        outbox.put(str(len(ForkingPickler.dumps(got)) > 0))
    except RuntimeError as raised:
        outbox.put(error(raised))
    outbox.put(got.clone().cpu())
    inbox.get(timeout=60)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return torch.full((2,), float(i)).cuda(), {"n": torch.tensor(i)}


def loaded(**options):
    loader = torch.utils.data.DataLoader(Rows(), batch_size=2, num_workers=1, multiprocessing_context="spawn", timeout=60, **options)
    return [[x, y["n"]] for x, y in loader]


if __name__ == "__main__":
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    child = context.Process(target=echo, args=(inbox, outbox))
    child.start()
    plain = torch.arange(3.0, device="cuda")
    for name, value in {"tensor": plain, "view": plain[1:], "parameter": torch.nn.Parameter(plain.clone())}.items():
        inbox.put(value)
        show(name, lambda: outbox.get(timeout=60))
        if name != "parameter":
            show(f"{name} written", lambda: [outbox.get(timeout=60), torch.cuda.synchronize()])
    show("written through", lambda: plain)
    inbox.put({"sparse": plain.to_sparse()})
    show("sparse", lambda: outbox.get(timeout=60))
    inbox.put(None)
    show("end", lambda: outbox.get(timeout=60))
    inbox.put("go")
    child.join(60)
    child = context.Process(target=resend, args=(inbox, outbox))
    child.start()
    inbox.put(plain)
    show("sent on", lambda: outbox.get(timeout=60))
    show("cloned first", lambda: outbox.get(timeout=60))
    inbox.put("go")
    child.join(60)
    from multiprocessing.reduction import ForkingPickler

    show("non-leaf", lambda: ForkingPickler.dumps(torch.ones(1, device="cuda", requires_grad=True) * 2))
    show("storage", lambda: ForkingPickler.dumps(plain.untyped_storage()))
    show("loader", loaded)
    show("pinned loader", lambda: loaded(pin_memory=True))
