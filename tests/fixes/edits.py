"""The first fix that the guard gives for each public case, as somebody would paste it: (old text, new text) pairs."""

from __future__ import annotations

MOVE = '\n        {0} = {0}.to("cuda", non_blocking=True)'


def moved(loop: str, *names: str) -> tuple[str, str]:
    """Move what the loop yields, at the top of its body."""
    return loop, loop + "".join(MOVE.format(name) for name in names)


LOOP = "for batch in loader:  # @fork"

# case: (id of the advice that is followed, its edits)
EDITS: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "c01_getitem_to_cuda": ("cpu-worker", [('sample.to("cuda")', "sample"), moved(LOOP, "batch")]),
    "c01a_device_from_config": ("cpu-worker", [(".to(device)", ""), moved(LOOP, "batch")]),
    "c01b_namedtuple_output": (
        "cpu-worker",
        [(".cuda()  # @touch", ""), (LOOP, LOOP + '\n        batch = batch._replace(image=batch.image.to("cuda", non_blocking=True))')],
    ),
    "c01d_dict_lists_numpy": (
        "cpu-worker",
        [
            ('float(i), device="cuda")', "float(i))"),
            (LOOP, LOOP + '\n        batch["x"] = batch["x"].to("cuda", non_blocking=True)'),
            ('batch["extra"]\n', 'batch["extra"]\n        double, plus = double.to("cuda"), plus.to("cuda")\n'),
        ],
    ),
    "c01e_gpu_step_back_to_cpu": ("cpu-worker", [("wave.cuda()", "wave")]),
    "c01f_two_devices": (
        "cpu-worker",
        [
            ('.to("cuda:0")', ""),
            ('.to("cuda:1")', ""),
            ("in loader:  # @fork", 'in loader:  # @fork\n        left, right = left.to("cuda:0"), right.to("cuda:1")'),
        ],
    ),
    "c01g_device_branch": (
        "cpu-worker",
        [
            ('float(i), device="cuda")', "float(i))"),
            ('if x.is_cuda and x.device.type == "cuda" and x.device.index == 0:', "if True:"),
            (
                "for x, where in loader:  # @fork",
                'for x, where in loader:  # @fork\n        x = x.to("cuda", non_blocking=True)\n        where = [str(x.device)] * 2',
            ),
        ],
    ),
    "c01i_iterable_dataset": ("cpu-worker", [('[float(n)], device="cuda")', "[float(n)])"), moved(LOOP, "batch")]),
    "c01j_stream_in_worker": (
        "cpu-worker",
        [
            ("side = torch.cuda.Stream()  # @touch\n        with torch.cuda.stream(side):\n            x = ", "x = "),
            (".cuda(non_blocking=True)\n        side.synchronize()", ""),
            moved(LOOP, "batch"),
        ],
    ),
    "c01l_current_device_in_worker": (
        "cpu-worker",
        [
            ("here = torch.cuda.current_device()  # @touch\n", "here = 0\n"),
            (".to(here), here", ", here"),
            moved("for x, index in loader:  # @fork", "x"),
        ],
    ),
    "c01n_torchdata_stateful_loader": ("cpu-worker", [('.to("cuda")  # @touch', ""), moved(LOOP, "batch")]),
    "c02_cached_gpu_table": ("copy-dataset-to-cpu", [('32.0, device="cuda")', "32.0)"), moved(LOOP, "batch")]),
    "c03_net_in_dataset": (
        "cpu-worker",
        [('torch.nn.Linear(4, 2).to("cuda")', "torch.nn.Linear(4, 2)"), ('.to("cuda")  # @touch', ""), ('float(i), device="cuda")', "float(i))")],
    ),
    "c04_tensordataset_on_gpu": (
        "copy-dataset-to-cpu",
        [('32.0, device="cuda")', "32.0)"), ('16, device="cuda")', "16)"), moved("for a, b in loader:  # @fork", "a", "b")],
    ),
    "c07_cuda_only_op": (
        "cpu-worker",
        [
            (".cuda()  # @touch", ""),
            ("return torch.ops.cgcase.double(points)", "return points"),
            (LOOP, LOOP + "\n        batch = torch.ops.cgcase.double(batch.cuda())"),
        ],
    ),
    "c09_collate_on_gpu": ("cpu-worker", [("stacked.cuda()", "stacked"), moved(LOOP, "batch")]),
    "c102_default_device_in_worker": (
        "set-default-device",
        [("timeout=20)", 'timeout=20, worker_init_fn=lambda worker_id: torch.set_default_device("cpu"))'), moved(LOOP, "batch")],
    ),
    "c103_strided_nested_built_in_worker": (
        "cpu-worker",
        [(', device="cuda")  # @touch', ")"), moved("for i, nt in enumerate(loader):  # @fork", "nt")],
    ),
    "c103a_jagged_nested_built_in_worker": (
        "cpu-worker",
        [(', device="cuda")  # @touch', ")"), moved("for i, nt in enumerate(loader):  # @fork", "nt")],
    ),
    "c103b_strided_nested_held_fork": (
        "copy-dataset-to-cpu",
        [
            (', device="cuda") for row', ") for row"),
            ("enumerate(loader):  # @fork", 'enumerate(loader):  # @fork\n        batch = [x.to("cuda") for x in batch]'),
        ],
    ),
    "c118_process_first_to_cuda": ("spawn-context", [('get_context("fork")', 'get_context("spawn")')]),
    "c12_torch_load_no_map_location": (
        "map-location",
        [
            ("torch.load(self.paths[i])", 'torch.load(self.paths[i], map_location="cpu")'),
            ("            assert batch.device", '            batch = batch.to("cuda", non_blocking=True)\n            assert batch.device'),
        ],
    ),
    "c17_second_epoch": (
        "cpu-worker",
        [
            (".cuda()  # @touch", ""),
            ("for b in loader]  # @init", "for b in map(torch.Tensor.cuda, loader)]"),
            ("for b in loader]  # @fork", "for b in map(torch.Tensor.cuda, loader)]"),
        ],
    ),
    "c19_is_available_then_fork": (
        "nvml-check",
        [('os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)', 'os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"')],
    ),
    "c20_get_device_name_in_worker": (
        "cpu-worker",
        [
            ('"device": name}', '"device": NAME}'),
            ("        name = torch.cuda.get_device_name(0)  # @touch\n", ""),
            ("    name = torch.cuda", "    NAME = name = torch.cuda"),
        ],
    ),
    "c26_import_chain": (
        "driver-import",
        [
            ("import umbrella  # @init\n", ""),
            ("    assert umbrella.fastops.caps.MAJOR >= 1\n", ""),
            ("    print(", "    import umbrella\n\n    assert umbrella.fastops.caps.MAJOR >= 1\n    print("),
        ],
    ),
    "c35_is_available_in_worker": (
        "cpu-worker",
        [
            ('device = "cuda" if torch.cuda.is_available() else "cpu"', 'device = "cuda"'),
            ("float(i), device=device), device", "float(i)), device"),
            moved("for x, device in loader:  # @fork", "x"),
        ],
    ),
    "c52_hf_datasets_map": (
        "spawn-context",
        [
            ('if __name__ == "__main__":\n', 'if __name__ == "__main__":\n    import multiprocess\n\n    multiprocess.set_start_method("spawn")\n'),
            ('"x"]], device="cuda")', '"x"]], device=net.weight.device)'),
            ("net = torch", "torch.manual_seed(0)\nnet = torch"),
        ],
    ),
    "c60_fork_then_spawn": ("spawn-context", [('mp.get_context("fork")', 'mp.get_context("spawn")')]),
    "c63_pool_global_model": (
        "pool-spawn",
        [('mp.get_context("fork")', 'mp.get_context("spawn")'), ("net = torch", "torch.manual_seed(0)\nnet = torch")],
    ),
    "c68_gunicorn_preload": (
        "server-hook",
        [
            ("    x = torch.ones(1, 2)", "    global MODEL\n    MODEL = torch.nn.Linear(2, 1).cuda()\n    x = torch.ones(1, 2)"),
            ("        global MODEL\n        MODEL = torch.nn.Linear(2, 1).cuda()  # @init\n", ""),
        ],
    ),
    "c71_celery_prefork": (
        "server-hook",
        [
            ("from celery.signals import worker_ready\n", "from celery.signals import worker_process_init, worker_ready\n"),
            ("    MODEL.cuda()  # @init\n", ""),
            ("def client():", "@worker_process_init.connect\ndef load(**_):\n    MODEL.cuda()\n\n\ndef client():"),
            ("    got = answer", "    MODEL.cuda()\n    got = answer"),
        ],
    ),
    "c72_double_fork": (
        "late-init",
        [('warm = torch.zeros(1, device="cuda")  # @init\n', ""), ("status = os", 'warm = torch.zeros(1, device="cuda")\nstatus = os')],
    ),
    "c73_c_fork_without_hooks": (
        "server-hook",
        [("model = torch.nn.Linear(2, 1).cuda()  # @init\n", ""), ("pid = libc.fork()", "pid = libc.fork()\nmodel = torch.nn.Linear(2, 1).cuda()")],
    ),
    "c85_global_spawn_but_loader_forks": ("spawn-context", [('multiprocessing_context="fork"', 'multiprocessing_context="spawn"')]),
    "c88_forkserver_preload_poison": ("late-init", [("READY = torch.zeros(1, device='cuda')\\n", "")]),
    "c99a_pin_memory_spawn_cuda_output": ("cpu-worker", [(".cuda()\n", "\n"), moved("for batch in loader:", "batch")]),
    "t01_unpicklable_output": ("", [(', "lock": threading.Lock()}', "}")]),
}
