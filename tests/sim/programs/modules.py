"""Modules, parameters, buffers, optimisers, state dicts."""

import copy
import io

import torch
from _show import show
from torch import nn


def _buffered():
    module = nn.Module()
    module.register_buffer("there", torch.zeros(1))
    return module.cuda()


def _packed():
    packed = nn.utils.rnn.pack_padded_sequence(torch.ones(3, 2, 4, device="cuda"), torch.tensor([3, 2]))
    padded, lengths = nn.utils.rnn.pad_packed_sequence(packed)
    return [packed.data.device, packed.batch_sizes.device, padded.device, lengths.device, nn.GRU(4, 2).cuda()(packed)[0].data.device]


def _move_with_grad():
    layer = nn.Linear(2, 2).cuda()
    layer(torch.ones(1, 2, device="cuda")).sum().backward()
    layer.cpu()
    return [layer.weight.device, layer.weight.grad.device]


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
first = net[0].weight
net.cuda()
show("same parameter object", lambda: net[0].weight is first)
show("parameters", lambda: {name: [p.device, type(p).__name__, p.is_leaf] for name, p in net.named_parameters()})
show("buffers", lambda: {name: b.device for name, b in net.named_buffers()})
show("isinstance", lambda: all(isinstance(p, nn.Parameter) for p in net.parameters()))
x = torch.tensor([[1.0, 2.0, 3.0], [0.5, -1.0, 2.0], [3.0, 0.0, 1.0], [1.0, 1.0, -1.0]], device="cuda")
y = torch.tensor([0, 1, 1, 0], device="cuda")
for name, make in {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "adamw single": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=False),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}.items():
    model = copy.deepcopy(net)
    optimizer = make(model.parameters())

    def train(model=model, optimizer=optimizer):
        losses = []
        for _ in range(4):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return [losses, loss.device, model[0].weight.grad.device, model[0].weight.device]

    show(name, train)
    show(f"{name} state", lambda o=optimizer, m=model: {k: v.device if torch.is_tensor(v) else v for k, v in o.state[m[0].weight].items()})
file = io.BytesIO()
torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "whole": torch.nn.Parameter(x)}, file)


def load(**options):
    file.seek(0)
    found = torch.load(file, **options)
    return [found["net"]["0.weight"].device, found["net"]["1.running_mean"].device, type(found["whole"]).__name__, found["whole"].device]


show("load", lambda: load())
show("load cpu", lambda: load(map_location="cpu"))
show("load device", lambda: load(map_location=torch.device("cuda:0")))
show("load dict", lambda: load(map_location={"cuda:0": "cpu"}))
show("load function", lambda: load(map_location=lambda storage, place: storage))
show("load function cuda", lambda: load(map_location=lambda storage, place: storage.cuda()))
show("load weights_only", lambda: load(weights_only=True))
show("load_state_dict from cpu", lambda: net.load_state_dict({k: v.cpu() for k, v in net.state_dict().items()}))
show("optimizer reload", lambda: optimizer.load_state_dict(optimizer.state_dict()))
show("cpu input", lambda: net(x.cpu()))
show("deepcopy", lambda: [p.device for p in copy.deepcopy(net).parameters()])
show("half", lambda: [p.dtype for p in copy.deepcopy(net).half().parameters()])
show("to cpu", lambda: [[p.device, type(p).__name__] for p in copy.deepcopy(net).cpu().parameters()])
show("device argument", lambda: [nn.Linear(1, 1, device="cuda").weight.device, nn.Embedding(2, 2, device="cuda").weight.device])
show("to_empty", lambda: nn.Linear(1, 1, device="meta").to_empty(device="cuda").weight.device)
show("register_buffer", lambda: _buffered().there.device)
show("parameter of cuda", lambda: [nn.Parameter(x).device, nn.Parameter(x) is not x, nn.Parameter(x).is_leaf])
show("flat", lambda: nn.utils.parameters_to_vector(net.parameters()).device)
show("clip", lambda: nn.utils.clip_grad_norm_([*model.parameters()], 1.0).device)
show("eval", lambda: net.eval()(x).argmax(1))
show("averaged", lambda: torch.optim.swa_utils.AveragedModel(net).module[0].weight.device)
show("weight norm", lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)).cuda()(x).device)
show("functional_call", lambda: torch.func.functional_call(net, dict(net.named_parameters()), (x,)).device)
show("lstm", lambda: [t.device for t in nn.LSTM(3, 2).cuda()(x[None])[1]])
show("attention", lambda: nn.MultiheadAttention(4, 2, batch_first=True).cuda()(*[torch.ones(1, 2, 4, device="cuda")] * 3)[0].device)
show("transformer", lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).cuda()(torch.ones(1, 2, 4, device="cuda")).device)
show("packed", lambda: _packed())
show("dropout", lambda: nn.Dropout(0.5).cuda()(x).device)
show("param grad devices", lambda: _move_with_grad())
show("zero_grad", lambda: net.zero_grad())
