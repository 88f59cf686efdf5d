"""The words of the fixes: read from whole statements, made for the call, and about lines that can be moved."""

from __future__ import annotations

import os
import sysconfig
import textwrap
from pathlib import Path

import pytest

from cudaguard import _advice, _places
from cudaguard._advice import Case
from cudaguard._journal import INITIALISED, QUERIED, Step
from cudaguard._places import Frame, Site

SCRIPT = """
    def build():
        return net.cuda()  # built

    def main():
        device = pick()  # picked
        net = build()  # called
        for batch in loader:  # fork
            use(batch)
        for x, y in loader:  # both
            use(x, y)
        items = list(loader)  # all
        row = torch.tensor(
            [1.0],
            device="cuda:1",
        )  # touch
        name = torch.cuda.get_device_name()  # name
        batch = torch.stack(rows).pin_memory()  # pin
        torch.cuda.set_device(0)  # choose
        plain = torch.tensor([1.0])  # plain
        ragged = torch.nested.nested_tensor(rows, device="cuda")  # ragged
        table = table.cuda()  # table
        held = restore(path)  # restore
        seen = table[0]  # held
"""
LIBRARY = os.path.join(sysconfig.get_path("purelib"), "augment", "core.py")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A program to speak about."""
    file = tmp_path / "train.py"
    file.write_text(textwrap.dedent(SCRIPT))
    return file


def at(script: Path, mark: str, *inner: Frame) -> Site:
    """The line with a mark, called from `main`, or in it."""
    lines = script.read_text().splitlines()
    (line,) = [n for n, text in enumerate(lines, 1) if text.endswith("# " + mark)]
    outer = (Frame(str(script), 30, "<module>", 0),)
    own = (Frame(str(script), line, "main", 0), *inner)
    return Site(str(script), line, "main", (*outer, *own))


def case(script: Path, **facts: object) -> Case:
    """A loader's worker that touched CUDA at `# touch`, started at `# called`."""
    origin = Step(1, INITIALISED, "torch.nn.Module.cuda", at(script, "called"), None, 0.0)
    plain = Case(
        "fork-after-init", "dataloader", "fork", INITIALISED, origin, at(script, "fork"), at(script, "touch"), "torch.tensor", None, False, True
    )
    return plain._replace(**facts)  # type: ignore[arg-type]


def words(case: Case) -> dict[str, str]:
    """The fixes by their ids, in their order."""
    return {advice.id: advice.text for advice in _advice.choose(case)}


def test_a_statement_of_several_lines_is_rewritten_whole(script: Path) -> None:
    """And the batch goes to the device that it named."""
    said = words(case(script))
    assert said["cpu-worker"].endswith("    row = torch.tensor(\n        [1.0],\n    )")
    assert said["move-in-parent"].endswith('    for batch in loader:\n        batch = batch.to("cuda:1", non_blocking=True)  # or each tensor in it')


def test_the_batch_is_moved_in_the_loop_that_there_is(script: Path) -> None:
    """Two names are moved one by one; where the loop is not the user's, none is made up."""
    assert words(case(script, fork=at(script, "both")))["move-in-parent"].count("non_blocking=True)\n") == 1
    elsewhere = words(case(script, fork=at(script, "all")))["move-in-parent"]
    assert "where it comes out of train.py:" in elsewhere and "for " not in elsewhere


def test_a_library_that_moves_the_batches_is_named(script: Path) -> None:
    """Lightning's users have no loop to write the move into."""
    file = os.path.join(os.path.dirname(os.path.dirname(LIBRARY)), "lightning", "pytorch", "loops", "fetchers.py")
    fork = at(script, "all", Frame(file, 52, "__iter__", 0))
    assert words(case(script, fork=fork))["move-in-parent"].startswith("Lightning moves each batch to the GPU by itself")
    own = at(script, "fork", Frame(os.path.join(os.sep, "home", "lightning", "train.py"), 3, "fit", 0))
    assert "for batch in loader:" in words(case(script, fork=own))["move-in-parent"]  # a folder of the user's may be called so
    assert "Lightning moves the batches." in words(case(script, fork=fork, slug="inherited-tensor", touch=at(script, "held")))["copy-dataset-to-cpu"]
    assert 'Trainer(..., strategy="ddp")' in words(case(script, fork=fork, maker="lightning"))["spawn-context"]


@pytest.mark.parametrize(
    ("mark", "call", "said"),
    [
        ("name", "torch.cuda.get_device_name", "it makes no data. Ask in the main process"),
        ("pin", "torch.Tensor.pin_memory", "DataLoader(..., pin_memory=True) pins in the main process"),
    ],
)
def test_what_makes_no_data_is_left_out_of_the_worker(script: Path, mark: str, call: str, said: str) -> None:
    """Nothing of the batch came from there, so nothing is to be moved."""
    fixes = words(case(script, touch=at(script, mark), call=call))
    assert said in fixes["cpu-worker"]
    assert "move-in-parent" not in fixes


@pytest.mark.parametrize("call", ["torch.cuda.set_device", "torch.cuda.current_device", "torch.cuda.Stream", "torch.cuda.device"])
def test_what_chooses_a_gpu_is_left_out_and_its_batch_is_moved(script: Path, call: str) -> None:
    """What the worker made on the chosen GPU has to get there all the same."""
    fixes = words(case(script, touch=at(script, "choose"), call=call))
    assert "has no GPU to choose" in fixes["cpu-worker"] and "move-in-parent" in fixes


def test_a_default_device_is_to_blame_where_the_line_names_none(script: Path) -> None:
    """A line that names the GPU itself is mended where it stands."""
    fixes = words(case(script, touch=at(script, "plain"), default_device=True))
    assert list(fixes)[:2] == ["set-default-device", "move-in-parent"]
    assert 'torch.set_default_device("cpu")' in fixes["set-default-device"]
    assert next(iter(words(case(script, default_device=True)))) == "cpu-worker"


def test_a_library_that_goes_to_the_gpu_is_named(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody should go and edit site-packages."""
    monkeypatch.setattr(_places, "_kinds", {})
    fixes = words(case(script, touch=at(script, "plain", Frame(LIBRARY, 9, "warp", 0))))
    assert "core.py:9, in a library, goes to the GPU" in fixes["cpu-worker"]
    loads = words(case(script, touch=at(script, "restore", Frame(LIBRARY, 9, "restore", 0)), call="torch.load"))
    assert 'leads to torch.load, which needs map_location="cpu"' in loads["map-location"]


def test_indices_on_the_gpu_are_the_sampler_s(script: Path) -> None:
    """The worker receives them before any line of the user's runs in it."""
    file = os.path.join(os.sep, "torch", "multiprocessing", "reductions.py")
    fixes = words(case(script, touch=Site(file, 178, "rebuild_cuda_tensor", (Frame(file, 178, "rebuild_cuda_tensor", 0),))))
    assert ".tolist()" in fixes["cpu-worker"]


def test_ragged_samples_are_collated_by_a_function_that_is_there(script: Path) -> None:
    """It is what people write by hand, on the GPU, in the worker."""
    fixes = words(case(script, touch=at(script, "ragged"), call="torch.nested.nested_tensor"))
    assert list(fixes) == ["cpu-worker", "move-in-parent", "nested-collate"]
    assert "collate_fn=cudaguard.collate.nested" in fixes["nested-collate"]
    assert "nested-collate" not in words(case(script))


def test_what_is_on_the_gpu_already_is_to_stay_on_the_cpu_as_well(script: Path) -> None:
    """Or the script would fail at the same line once more, of the inherited module."""
    script.write_text("called()  # called\nencoder = Net().cuda()\nfork()  # fork\ndef collate(rows):\n    return encoder(rows.cuda())  # touch\n")
    fixes = words(case(script, call="torch.Tensor.cuda"))["cpu-worker"]
    assert fixes.endswith("train.py:5:\n    return encoder(rows)\nand what it uses, train.py:2:\n    encoder = Net()")


def test_a_library_that_was_told_to_use_the_gpu_is_told_otherwise(script: Path) -> None:
    """The line in the library is nobody's to change."""
    script.write_text('rows = load().with_format("torch", device="cuda")\nfor row in rows:  # fork\n    pass\ncalled()  # called\npass  # touch\n')
    touch = Site(LIBRARY, 9, "warp", (Frame(LIBRARY, 9, "warp", 0),))
    fixes = words(case(script, touch=touch, call="torch.tensor"))["cpu-worker"]
    assert "If train.py:1 tells it to, leave that out there:" in fixes and fixes.endswith('    rows = load().with_format("torch")')


def test_nobody_is_told_to_write_a_name_to_itself(script: Path) -> None:
    """`table = table` is no fix."""
    assert "delete train.py:" in words(case(script, touch=at(script, "table"), call="torch.Tensor.cuda"))["cpu-worker"]
    held = words(case(script, slug="inherited-tensor", touch=at(script, "held")))["copy-dataset-to-cpu"]
    assert "    # without table = table.cuda()\n" in held and "    table = table\n" not in held


def test_what_holds_the_data_is_not_guessed(script: Path) -> None:
    """The line that started CUDA may have made something else."""
    held = words(case(script, slug="inherited-tensor", touch=at(script, "touch"), fork=at(script, "all")))["copy-dataset-to-cpu"]
    assert held.startswith("Keep what train.py:") and "uses on the CPU" in held and "\n" not in held


def test_of_many_lines_the_first_are_named(script: Path) -> None:
    """The rest is counted."""
    script.write_text("".join(f"x{n} = y.cuda()\n" for n in range(6)) + "x0 + x1 + x2 + x3 + x4 + x5  # touch\nfork()  # fork\ncalled()  # called\n")
    held = words(case(script, slug="inherited-tensor"))["copy-dataset-to-cpu"]
    assert held.startswith("Keep the dataset on the CPU, train.py:1, train.py:2, train.py:3, and 3 more:\n    x0 = y\n    x1 = y\n    x2 = y\nand")


def test_lines_are_moved_in_the_function_that_forks(script: Path) -> None:
    """A line in a function that the program calls before the fork cannot be moved below it: the call can. Both lines that woke CUDA are named."""
    query = Step(1, QUERIED, "torch.cuda.is_available", at(script, "picked"), None, 0.0)
    inside = at(script, "called", Frame(str(script), 3, "build", 0))._replace(line=3, function="build")
    start = Step(1, INITIALISED, "torch.nn.Module.cuda", inside, None, 0.0)
    said = words(case(script, maker="os.fork", origin=query, steps=(query, start)))["late-init"]
    assert said == "Move train.py:6 and train.py:7 below train.py:8, so that the child is forked first."


def test_a_fork_that_is_no_line_of_the_user_s_is_not_pointed_at(script: Path) -> None:
    """A pool forks its later workers from a thread of its own."""
    fork = Site(os.path.join(_places.STDLIB, "multiprocessing", "popen_fork.py"), 66, "_launch", (Frame("popen_fork.py", 66, "_launch", 0),))
    said = words(case(script, maker="pool", fork=fork))
    assert said["pool-spawn"].startswith("Start the pool without fork:")
    assert "below the line that makes the children" in said["late-init"]


def test_what_a_child_inherits_cannot_be_made_after_the_fork(script: Path) -> None:
    """Moved below the fork, the child would not have it."""
    said = words(case(script, maker="os.fork", slug="inherited-tensor"))["late-init"]
    assert "move train.py:7 into the child" in said and ".cpu()" in said


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The body of an installed package."""
    monkeypatch.setattr(_places, "_kinds", {})
    return os.path.join(sysconfig.get_path("purelib"), "kit", "__init__.py")


def imported(script: Path, package: str, tier: str, cause: str) -> Step:
    """A step up that the body of a package did, imported at `# picked`."""
    return Step(1, tier, cause, at(script, "picked", Frame(package, 2, "<module>", 0)), None, 0.0, cause)


def test_an_import_that_starts_cuda_is_to_be_done_later(script: Path, package: str) -> None:
    """It is named with the line in the package that does it."""
    step = imported(script, package, INITIALISED, "")
    fixes = words(case(script, origin=step, steps=(step,)))
    assert next(iter(fixes)) == "driver-import"
    assert f"Importing initialises CUDA at train.py:6 ({os.path.join('kit', '__init__.py')}:2 does it)" in fixes["driver-import"]


def test_an_import_that_only_asks_may_ask_another_way(script: Path, package: str) -> None:
    """The switch is part of that fix: there is room for three."""
    step = imported(script, package, QUERIED, "torch.cuda.is_available")
    said = words(case(script, tier=QUERIED, origin=step, steps=(step,)))["driver-import"]
    assert "Importing asks for the GPU" in said and "PYTORCH_NVML_BASED_CUDA_CHECK=1" in said


def test_an_import_is_not_to_blame_where_another_line_started_cuda(script: Path, package: str) -> None:
    """To import it later would mend nothing."""
    query = imported(script, package, QUERIED, "torch.cuda.is_available")
    start = Step(1, INITIALISED, "torch.nn.Module.cuda", at(script, "called"), None, 0.0)
    assert "driver-import" not in words(case(script, origin=query, steps=(query, start)))


def test_what_the_user_s_own_module_asks_as_it_is_imported_goes_into_a_function(script: Path) -> None:
    """Nobody can move a line of one file below a line of another."""
    settings = str(script.with_name("settings.py"))
    site = Site(settings, 3, "<module>", (Frame(str(script), 2, "<module>", 0), Frame(settings, 3, "<module>", 0)))
    step = Step(1, INITIALISED, "torch.zeros", site, None, 0.0)
    said = words(case(script, maker="os.fork", origin=step, steps=(step,)))["late-init"]
    assert said == "settings.py:3 runs when train.py:2 imports it: put it into a function, and call that after train.py:8 or in the child."
