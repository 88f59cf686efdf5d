"""Pools that fork later, from a thread of their own."""

from __future__ import annotations

from guarded import Program

RENEWED = """
    import multiprocessing as mp
    import torch

    def task(n):
        return torch.full((2,), float(n)).cuda().sum().item()  # touch

    if __name__ == "__main__":
        with mp.get_context("fork").Pool(1, maxtasksperchild=1) as pool:  # pool
            assert pool.apply(abs, (-1,)) == 1
            warm = torch.zeros(1, device="cuda")  # init
            pool.apply(abs, (-2,))  # the worker that was waiting was forked before
            pool.apply(task, (3,))
"""


def test_a_worker_that_a_pool_renews_was_made_by_the_line_that_made_the_pool(program: Program) -> None:
    """The thread that forks it is on no line of the user's, and nobody can look for popen_fork.py."""
    done = program(RENEWED)
    assert done.code == 1
    finding = done.report[-1]
    assert finding["maker"] == "pool"
    assert finding["origin"]["line"] == done.line("# init")
    assert (finding["fork"]["file"], finding["fork"]["line"]) == (str(done.script), done.line("# pool"))
    assert finding["fork"]["stack"][-1]["file"].endswith("popen_fork.py")
    assert finding["touch"]["line"] == done.line("# touch")
    assert f"program.py:{done.line('# pool')}" in done.err and "popen_fork.py:" not in done.err.partition("CudaForkError: ")[2]
