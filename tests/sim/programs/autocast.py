"""autocast("cuda") and GradScaler."""

import torch
import torch.nn.functional as F
from _show import show


def _bce():
    with torch.autocast("cuda"):
        return F.binary_cross_entropy(torch.sigmoid(net[0](x)), torch.ones(3, 8, device="cuda"))


torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).cuda()
x = torch.linspace(-1, 1, 12, device="cuda").view(3, 4)
y = torch.tensor([0, 1, 0], device="cuda")


def dtypes(**options):
    with torch.autocast("cuda", **options):
        h = net[0](x)
        found = {
            "linear": h, "norm": net[1](h), "relu": F.relu(h), "softmax": F.softmax(h, -1), "log": h.abs().log(), "sum": h.sum(),
            "matmul": x @ x.t(), "mm": torch.mm(x, x.t()), "add": h + h, "mixed add": h + x[:, :1], "exp": h.exp(), "pow": h**2,
            "mse": F.mse_loss(h, torch.zeros_like(h)), "cross": F.cross_entropy(net(x), y), "cat": torch.cat([h, x], 1), "gelu": F.gelu(h),
            "bmm": torch.bmm(x[None], x.t()[None]), "conv": F.conv1d(x[None], torch.ones(1, 3, 1, device="cuda")), "mean": h.mean(),
            "einsum": torch.einsum("ij,kj->ik", x, x), "sdpa": F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
            "norm2": torch.norm(h), "cumsum": h.cumsum(0), "cpu mm": torch.mm(torch.ones(2, 2), torch.ones(2, 2)),
            "double": x.double() @ x.double().t(),
        }  # fmt: skip
    return {name: [t.dtype, t.device] for name, t in found.items()}


def step(scaler):
    model = torch.nn.Linear(4, 2).cuda()
    with torch.no_grad():
        model.weight.fill_(0.25)
        model.bias.fill_(0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return [losses, scaler.get_scale(), loss.dtype, model.weight.dtype, model.weight.grad.dtype]


show("float16", dtypes)
show("bfloat16", lambda: dtypes(dtype=torch.bfloat16))
show("disabled", lambda: dtypes(enabled=False))
show("scaled steps", lambda: step(torch.amp.GradScaler("cuda")))
show("unscaled steps", lambda: step(torch.amp.GradScaler("cuda", enabled=False)))
show("state", lambda: sorted(torch.amp.GradScaler("cuda").state_dict()))
show("enabled", lambda: [torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")])
show("decorator", lambda: torch.autocast("cuda")(lambda: (x @ x.t()).dtype)())
show("binary cross entropy", lambda: _bce())
