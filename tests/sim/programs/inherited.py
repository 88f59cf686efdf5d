"""A forked child of a process that used CUDA: what it may ask of the streams, events and generators that it inherits."""

import torch
from _fork import in_child
from _show import show

start, end, fresh = (torch.cuda.Event(enable_timing=True) for _ in range(3))
x, drawn = torch.arange(4.0, device="cuda"), torch.ones(4, device="cuda")
stream, other = torch.cuda.Stream(), torch.cuda.Stream()
generator = torch.Generator(device="cuda")
generator.manual_seed(5)
state = generator.get_state()
start.record()
end.record()
torch.cuda.synchronize()
uses = {
    "event query": lambda: end.query(),
    "event synchronize": lambda: end.synchronize(),
    "event wait": lambda: end.wait(stream),
    "event wait here": lambda: end.wait(),
    "event elapsed_time": lambda: start.elapsed_time(end) >= 0,
    "event record": lambda: end.record(stream),
    "event record here": lambda: end.record(),
    "event device": lambda: end.device,
    "fresh event query": lambda: fresh.query(),
    "fresh event synchronize": lambda: fresh.synchronize(),
    "fresh event record": lambda: fresh.record(stream),
    "stream query": lambda: stream.query(),
    "stream synchronize": lambda: stream.synchronize(),
    "stream wait_stream": lambda: stream.wait_stream(other),
    "stream wait_event": lambda: stream.wait_event(end),
    "stream record_event": lambda: stream.record_event() is not None,
    "stream device": lambda: stream.device,
    "stream equals": lambda: [stream == other, stream == stream],
    "with stream": lambda: torch.cuda.stream(stream).__enter__(),
    "stream entered": lambda: stream.__enter__() is not None,
    "tensor record_stream": lambda: x.record_stream(stream),
    "generator device": lambda: generator.device,
    "generator initial_seed": lambda: generator.initial_seed(),
    "generator manual_seed": lambda: generator.manual_seed(3).initial_seed(),
    "generator seed": lambda: generator.seed() > 0,
    "generator get_state": lambda: generator.get_state().dtype,
    "generator set_state": lambda: generator.set_state(state).initial_seed(),
    "generator get_offset": lambda: generator.get_offset(),
    "generator set_offset": lambda: generator.set_offset(8).get_offset(),
    "generator clone_state": lambda: generator.clone_state().initial_seed(),
    "drawing": lambda: drawn.normal_(generator=generator).shape,
    "drawing on the CPU": lambda: torch.rand(1, generator=generator),
    "numpy": lambda: x.numpy(),
    "numpy by force": lambda: x.numpy(force=True).tolist(),
    "array": lambda: x.__array__(),
}
WAKES = ("event wait here", "with stream")  # give or take what has no text
for name, use in uses.items():
    if name not in WAKES:
        show(f"{name}, here", use)
    print(f"{name}, in a child: {in_child(use)}", flush=True)
