"""torch's other back ends: the same verdict in their own words, tried with a stand-in that follows torch's own pattern."""

from __future__ import annotations

from pathlib import Path

from guarded import Program

BACKEND = """
import os

_initialized = _bad = False

def _forked():
    global _bad
    _bad = _bad or _initialized

os.register_at_fork(after_in_child=_forked)

def _is_in_bad_fork():
    return _bad

def is_initialized():
    return _initialized and not _bad

def _lazy_init():
    global _initialized
    if is_initialized():
        return
    if _is_in_bad_fork():
        raise RuntimeError("Cannot re-initialize NPU in forked subprocess. To use NPU with multiprocessing, you must use the 'spawn' start method")
    _initialized = True

def current_device():
    _lazy_init()
    return 0
"""

FORKING = """
    import torch, torch_npu.npu, cudaguard
    from torch.utils.data import DataLoader, Dataset

    class Data(Dataset):
        def __len__(self):
            return 1
        def __getitem__(self, index):
            return torch_npu.npu.current_device()  # touch

    def load():
        for batch in DataLoader(Data(), num_workers=1, multiprocessing_context="fork"):  # fork
            print(batch)

    load()
    torch_npu.npu.current_device()  # origin
    try:
        load()
    except RuntimeError as error:
        print(type(error).__name__, error)
    print(cudaguard.origin(), cudaguard.fork_safe())
"""


def _install(folder: Path) -> dict[str, str]:
    home = folder / "site-packages" / "torch_npu"
    home.mkdir(parents=True)
    (home / "__init__.py").write_text("")
    (home / "npu.py").write_text(BACKEND)
    return {"PYTHONPATH": str(folder / "site-packages")}


def test_a_bad_fork_is_judged_in_the_back_end_s_words(program: Program, tmp_path: Path) -> None:
    """Origin, fork and touch are named, everything says NPU, a worker forked before is left alone, and CUDA's own story is untouched."""
    run = program(FORKING, simulate=None, env=_install(tmp_path)).ok()
    (finding,) = run.report
    lines = [finding[name]["line"] for name in ("origin", "fork", "touch")]
    assert lines == [run.line("# origin"), run.line("# fork"), run.line("# touch")]
    assert (finding["slug"], finding["maker"], finding["tier"]) == ("fork-after-init", "dataloader", "initialised")
    assert finding["message"].startswith("Cannot re-initialize NPU in forked subprocess")
    first, *told = run.out.splitlines()
    assert first == "tensor([0])"
    assert told[0].startswith("CudaForkError Cannot re-initialize NPU in forked subprocess")
    text = "\n".join(told[:-1]).replace("CudaForkError", "")
    assert "which had started NPU" in text
    assert "CUDA" not in text
    assert '"cuda"' not in text
    assert told[-1] == "None True"


def test_rocm_is_called_by_its_name(program: Program) -> None:
    """On a ROCm build the story says HIP, under the sentence that PyTorch gives there."""
    source = """
        import torch, cudaguard
        torch.version.hip = "6.4"
        torch.cuda.is_available()
        import os
        pid = os.fork()
        if pid == 0:
            try:
                torch.ones(1).cuda()
            except RuntimeError as error:
                print(error, flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
    """
    out = program(source).ok().out
    assert out.startswith("Cannot re-initialize CUDA in forked subprocess")
    assert "HIP (ROCm) does not survive being copied" in out
