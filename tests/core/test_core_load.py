"""Many forks, deep families, many threads, long epochs: nothing is lost and nothing leaks."""

from __future__ import annotations

from guarded import Program

FORKS = """
    import json, os, threading, time, torch
    from torch.utils.data import DataLoader, TensorDataset

    def held():
        return [len(os.listdir("/proc/self/fd")), threading.active_count()]

    torch.ones(1).cuda()  # init
    before = held()
    codes = []
    for n in range(200):
        pid = os.fork()
        if pid == 0:
            os._exit(n % 7)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    assert codes == [n % 7 for n in range(200)]
    assert held() == before, (held(), before)

    def nested(depth):
        pid = os.fork()  # nested
        if pid:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if depth > 1:
            os._exit(nested(depth - 1))
        try:
            torch.ones(1).cuda()  # touch
        except RuntimeError as error:
            os._exit(0 if type(error).__name__ == "CudaForkError" else 1)
        os._exit(2)

    assert nested(50) == 0
    data = TensorDataset(torch.arange(4000.0))
    loader = DataLoader(data, batch_size=2, num_workers=1, persistent_workers=True, multiprocessing_context="fork")
    list(loader)
    first = held()
    for epoch in range(2):
        assert sum(float(batch.sum()) for batch, in loader) == sum(range(4000))
    assert held() == first, (held(), first)
    import cudaguard
    from cudaguard import _journal
    assert len(_journal.current.forks) == 0 and len(_journal.current.steps) <= 2
    print(json.dumps([f["slug"] for f in cudaguard.report().findings]))
"""


def test_many_forks_deep_families_and_long_epochs(program: Program) -> None:
    """200 forks keep their exit codes, the 50th descendant is still judged by the first fork, thousands of batches leak neither files nor threads."""
    done = program(FORKS)
    assert done.json() == []
    (finding,) = done.report
    assert finding["slug"] == "fork-after-init"
    assert finding["origin"]["line"] == done.line("# init")
    assert finding["fork"]["line"] == done.line("# nested")
    assert finding["touch"]["line"] == done.line("# touch")
    assert done.err == ""


THREADS = """
    import collections, json, os, threading, torch

    def together(action):
        gate, said = threading.Barrier(64), []
        def run():
            gate.wait()
            try:
                said.append(str(action().device))
            except Exception as error:
                said.append(type(error).__name__)
        threads = [threading.Thread(target=run) for _ in range(64)]
        [thread.start() for thread in threads]
        [thread.join(60) for thread in threads]
        assert not any(thread.is_alive() for thread in threads)
        return collections.Counter(said)

    first = together(lambda: torch.ones(1).cuda())  # init
    pid = os.fork()
    if pid == 0:
        said = together(lambda: torch.ones(1).cuda())  # touch
        os._exit(0 if said == {"CudaForkError": 64} else 1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    import cudaguard
    print(json.dumps([first, code, threading.active_count(), cudaguard.origin().line, [f["slug"] for f in cudaguard.report().findings]]))
"""


def test_64_threads_at_once(program: Program) -> None:
    """They initialise CUDA together in a healthy process, and in a forked one each gets the guard's error; the place is reported once."""
    done = program(THREADS)
    assert done.json() == [{"cuda:0": 64}, 0, 1, done.line("# init"), []]
    assert [finding["touch"]["line"] for finding in done.report] == [done.line("# touch")]
    assert done.err == ""
