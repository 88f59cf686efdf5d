"""What crosses between processes: outputs that cannot be sent, workers whose loop ends, tensors that are sent on, pinning."""

from __future__ import annotations

from guarded import Program

INHERITED = """
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Boxes(Dataset):
        def __init__(self):
            self.boxes = [torch.full((i + 1, 4), float(i)).cuda() for i in range(4)]  # started here

        def __len__(self):
            return 4

        def __getitem__(self, i):
            return self.boxes[i], i

    if __name__ == "__main__":
        for batch in DataLoader(Boxes(), batch_size=2, num_workers=1, collate_fn=lambda b: tuple(zip(*b)), multiprocessing_context="fork"):  # forked here
            pass
"""


def test_an_inherited_tensor_that_a_worker_only_returns_is_called_so(program: Program) -> None:
    """Nothing in the worker uses it: to send it is the first use, and its dataset is what has to change, not its output."""
    done = program(INHERITED)
    assert done.code == 1
    assert "cudaguard.errors.CudaForkError: CUDA error: initialization error" in done.err
    assert "batch[0][0] (Tensor)" in done.err
    (finding,) = done.report
    places = [finding[step]["line"] for step in ("origin", "fork")]
    assert (finding["slug"], places) == ("inherited-tensor", [done.line("# started here"), done.line("# forked here")])
    assert all(f"{done.script.name}:{line}" in done.err for line in places)
    assert finding["advice"][0]["id"] == "copy-dataset-to-cpu"


TOUCHED_WHEN_PICKLED = """
    import torch
    from torch.utils.data import DataLoader

    class Lazy:
        def __reduce__(self):
            return list, ((torch.ones(1).cuda(),),)  # touched here

    def gather(items):
        return Lazy()

    if __name__ == "__main__":
        torch.zeros(1, device="cuda")
        for batch in DataLoader(range(2), collate_fn=gather, num_workers=1, multiprocessing_context="fork"):
            pass
"""


def test_an_output_that_touches_cuda_when_it_is_pickled_is_a_touch(program: Program) -> None:
    """The guard's own error in the queue's feeder thread goes on as it is: no second finding on the same fault."""
    done = program(TOUCHED_WHEN_PICKLED)
    assert done.code == 1
    assert "cudaguard.errors.CudaForkError: Cannot re-initialize CUDA in forked subprocess" in done.err
    assert [(finding["slug"], finding["touch"]["line"]) for finding in done.report] == [("fork-after-init", done.line("# touched here"))]
