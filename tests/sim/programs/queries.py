"""torch.cuda and torch.accelerator: counts, properties, streams, events, memory."""

import torch
from _show import show


def _accelerator():
    a = torch.accelerator
    return [a.is_available(), a.device_count() > 0, a.current_accelerator(), a.current_device_index(), a.set_device_index(0)]


def _indexed():
    with torch.accelerator.device_index(0):
        return torch.ones(1, device="cuda").device


def _untimed():
    first, second = torch.cuda.Event(), torch.cuda.Event()
    first.record()
    second.record()
    torch.cuda.synchronize()
    return first.elapsed_time(second)


def _within():
    with torch.cuda.device(0):
        return [torch.cuda.current_device(), torch.ones(1, device="cuda").device]


show("before", lambda: [torch.cuda.is_initialized(), torch.cuda.memory_allocated(), torch.cuda.memory_stats(), torch.cuda.empty_cache()])
show("available", lambda: [torch.cuda.is_available(), torch.cuda.is_initialized(), torch.backends.cuda.is_built()])
show("count", lambda: torch.cuda.device_count() > 0)
show("current", lambda: [torch.cuda.current_device(), torch.cuda.is_initialized()])
show("name", lambda: [isinstance(torch.cuda.get_device_name(), str), torch.cuda.get_device_name(0) == torch.cuda.get_device_properties(0).name])
show(
    "capability",
    lambda: [torch.cuda.get_device_capability() == (torch.cuda.get_device_properties(0).major, torch.cuda.get_device_properties(0).minor)],
)
p = torch.cuda.get_device_properties("cuda:0")
show("properties", lambda: [p.total_memory > 0, p.multi_processor_count > 0, p.warp_size, isinstance(p.name, str), p.L2_cache_size > 0])
show("bad device", lambda: torch.cuda.get_device_properties(63))
show("set bad device", lambda: torch.cuda.set_device(63))
show("set device", lambda: [torch.cuda.set_device(0), torch.cuda.set_device("cuda:0"), torch.cuda.set_device(torch.device("cuda", 0))])
show("mem_get_info", lambda: (lambda free, total: 0 < free <= total)(*torch.cuda.mem_get_info()))
show(
    "memory", lambda: [isinstance(torch.cuda.max_memory_allocated(), int), torch.cuda.memory_reserved() >= 0, len(torch.cuda.memory_summary()) > 100]
)
show("memory stats", lambda: [key in torch.cuda.memory_stats() for key in ("allocated_bytes.all.current", "reserved_bytes.all.peak", "num_ooms")])
show("resets", lambda: [torch.cuda.reset_peak_memory_stats(), torch.cuda.reset_accumulated_memory_stats(), torch.cuda.empty_cache()])
show("fraction", lambda: torch.cuda.set_per_process_memory_fraction(0.5))
show("arch list", lambda: len(torch.cuda.get_arch_list()) > 0)
show("bf16", lambda: [torch.cuda.is_bf16_supported(), torch.cuda.is_tf32_supported()])
show("module", lambda: [torch.get_device_module().__name__, torch.get_device_module("cuda").__name__, torch.get_device_module("cpu").__name__])
show("accelerator", _accelerator)
show("accelerator stream", lambda: [torch.accelerator.synchronize(), torch.accelerator.current_stream().device])
show("accelerator index", lambda: _indexed())
show("synchronize", lambda: [torch.cuda.synchronize(), torch.cuda.synchronize(0), torch.cuda.ipc_collect()])


def streams():
    side = torch.cuda.Stream()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    x = torch.ones(4, device="cuda")
    with torch.cuda.stream(side):
        inside = torch.cuda.current_stream() == side
        start.record()
        y = x * 2
        end.record()
    outside = torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.cuda.current_stream().wait_stream(side)
    y.record_stream(torch.cuda.current_stream())
    end.synchronize()
    event = side.record_event()
    side.wait_event(event)
    side.synchronize()
    return [inside, outside, start.elapsed_time(end) >= 0, end.query(), side.query(), y, side.device, side.priority]


show("streams", streams)
show("stream types", lambda: [isinstance(torch.cuda.Stream(), torch.Stream), isinstance(torch.cuda.Event(), torch.Event)])
show("torch.Stream", lambda: [torch.Stream(device="cuda").device, torch.Stream(device="cuda").device_index])
show("default stream", lambda: [torch.cuda.default_stream().cuda_stream, torch.cuda.current_stream() == torch.cuda.default_stream()])
show("stream context none", lambda: torch.cuda.stream(None).__enter__())
show("event unrecorded", lambda: [torch.cuda.Event().query(), torch.cuda.Event().synchronize()])
show("elapsed without timing", lambda: _untimed())
show("elapsed unrecorded", lambda: torch.cuda.Event(enable_timing=True).elapsed_time(torch.cuda.Event(enable_timing=True)))
show("priority", lambda: torch.cuda.Stream(priority=-1).priority)
show("device context", lambda: _within())
show("device_of", lambda: torch.cuda.device_of(torch.ones(1, device="cuda")).idx)
show("capturing", lambda: torch.cuda.is_current_stream_capturing())
