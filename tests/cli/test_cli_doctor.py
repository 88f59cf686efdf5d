"""`doctor`: what it says, and that it wakes nothing."""

from __future__ import annotations

import json
import sys

import pytest

import cudaguard as guard
from cudaguard._cli import doctor, facts

guard.disable()  # importing it turned it on: not here, where other tests run


def asked(cudaguard, **env):
    result = cudaguard("doctor", "--json", env=env)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_it_says_versions_mode_and_what_is_patched(cudaguard):
    import torch

    told = asked(cudaguard, CUDAGUARD="warn")
    assert told["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert told["versions"]["torch"] == torch.__version__
    assert told["versions"]["cuda build"] == torch.version.cuda
    assert (told["guard"]["mode"], told["guard"]["CUDAGUARD"]) == ("warn", "warn")
    assert "torch.cuda._lazy_init" in told["hooks"]["patched"]
    assert "torch.utils.data._utils.worker._worker_loop" in told["hooks"]["patched"]
    assert told["processes"]["default start method"] in ("fork", "spawn", "forkserver")


def test_off_watches_nothing(cudaguard):
    told = asked(cudaguard, CUDAGUARD="off")
    assert told["guard"]["mode"] == "off"
    assert told["hooks"]["patched"] == []


def test_the_text_has_every_section(cudaguard, tmp_path):
    result = cudaguard("doctor", env={"CUDAGUARD_REPORT": "r.jsonl", "CUDAGUARD_TRACE": "t.json"})
    assert (result.returncode, result.stderr) == (0, "")
    titles = [line for line in result.stdout.splitlines() if line and not line.startswith(" ")]
    assert titles[:6] == ["Versions", "Guard", "CUDA", "Processes", "Environment", "System"]
    assert str(tmp_path / "r.jsonl") in result.stdout
    assert str(tmp_path / "t.json") in result.stdout
    assert list(tmp_path.iterdir()) == []  # looking is no event


def test_it_wakes_neither_the_driver_nor_torch(cudaguard, write):
    """Run it in a process that then tells what it woke: simulated here, where there is no GPU."""
    write(
        "look.py",
        """
        import contextlib, io, sys
        from cudaguard._cli import main
        with contextlib.redirect_stdout(io.StringIO()):
            main(["doctor"])
        import torch
        import cudaguard
        from cudaguard import _driver
        print(_driver.up(), torch.cuda.is_initialized(), cudaguard.origin(), cudaguard.fork_safe())
        torch.cuda.is_available()
        print(_driver.up(), cudaguard.fork_safe())
        """,
    )
    result = cudaguard("look.py", env={"CUDAGUARD_SIMULATE": "1"})
    assert result.stdout.splitlines() == ["False False None True", "True False"], result.stderr


@pytest.mark.gpu
def test_it_wakes_no_real_driver(cudaguard):
    told = asked(cudaguard)
    assert told["driver"]["device files"]
    assert told["driver"]["up"] is False


def test_a_start_up_file_is_found_in_a_site_folder(cudaguard, monkeypatch, tmp_path):
    import site

    (tmp_path / "cudaguard.pth").write_text("")
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(tmp_path)])
    monkeypatch.setattr(site, "ENABLE_USER_SITE", False)
    assert facts.start_files() == [str(tmp_path / "cudaguard.pth")]


def test_the_variable_without_a_start_up_file_is_remarked(python):
    result = python("-S", "-c", "from cudaguard._cli import facts; print(facts.start_files())")
    assert result.stdout == "[]\n", result.stderr


def test_a_torch_that_cannot_be_imported_is_a_fact_not_a_crash(cudaguard, write):
    write("torch.py", "raise OSError('libcudart.so.99: cannot open shared object file')")
    result = cudaguard("doctor")
    assert result.returncode == 0
    assert "torch                           cannot be imported: OSError: libcudart.so.99" in result.stdout
    assert "there is nothing to guard" in result.stdout


@pytest.mark.parametrize(
    ("environ", "on"),
    [
        ({}, False),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, True),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:128, expandable_segments : true"}, True),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, False),
    ],
)
def test_expandable_segments_are_read_from_any_of_the_variables(environ, on):
    assert facts.expandable(environ) is on


@pytest.mark.parametrize(
    ("release", "is_wsl"), [("5.15.153.1-microsoft-standard-WSL2", True), ("4.4.0-19041-Microsoft", True), ("6.8.0-45-generic", False)]
)
def test_wsl_is_told_by_its_kernel(release, is_wsl):
    assert facts.wsl(release) is is_wsl


def looked_at(**changed):
    """The facts of a machine where there is nothing to remark, but for some."""
    plain = {
        "versions": {"torch": "2.13.0", "hip build": None},
        "guard": {"stepped aside": [], "built": True, "CUDAGUARD": None, "start-up file": ["x.pth"], "not writable": []},
        "hooks": {"not watched": []},
        "driver": {"woken by importing torch": False},
        "environment": {**dict.fromkeys(facts.VARIABLES), "expandable segments": False},
        "platform": {"system": "Linux", "wsl": False},
    }
    for place, value in changed.items():
        section, _, name = place.partition("__")
        plain[section][name.replace("_", " ") if name.islower() else name] = value
    return plain


def test_there_is_nothing_to_remark_on_a_plain_machine():
    assert doctor.notes(looked_at()) == []


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"guard__stepped_aside": ["x"]}, "the guard failed inside"),
        ({"driver__woken_by_importing_torch": True}, "importing torch woke the CUDA driver"),
        ({"guard__built": False}, "not built yet"),
        ({"guard__CUDAGUARD": "warn", "guard__start-up_file": []}, "no start-up file"),
        ({"guard__not_writable": ["/r"]}, "cannot be written"),
        ({"versions__torch": None}, "nothing to guard"),
        ({"hooks__not_watched": ["torch.x"]}, "lacks some names"),
        ({"versions__hip_build": "6.2"}, "ROCm"),
        ({"platform__system": "Darwin"}, "macOS has no CUDA"),
        ({"platform__system": "Windows"}, "Windows has no fork"),
        ({"platform__wsl": True}, "WSL"),
        ({"environment__expandable_segments": True}, "pidfd_getfd"),
        ({"environment__PYTORCH_NVML_BASED_CUDA_CHECK": "1"}, "asks NVML"),
        ({"environment__PYTORCH_NVML_BASED_CUDA_CHECK": "yes"}, "only if it is 1"),
        ({"environment__CUDA_VISIBLE_DEVICES": ""}, "hides every GPU"),
        ({"environment__CUDA_VISIBLE_DEVICES": "MIG-1"}, "MIG"),
    ],
)
def test_each_remark_is_made_where_it_holds(changed, says):
    told = doctor.notes(looked_at(**changed))
    assert any(says in note for note in told), told


def test_a_stream_that_is_not_utf_8_is_no_crash(cudaguard):
    result = cudaguard("doctor", env={"PYTHONIOENCODING": "ascii", "CUDAGUARD_IGNORE": "lost-gpu@é.py"})
    assert result.returncode == 0, result.stderr
    assert "lost-gpu@\\xe9.py" in result.stdout


def test_a_mode_that_is_not_built_is_said(cudaguard):
    from cudaguard import _config

    for mode in _config.NOT_BUILT:
        assert f"{mode} (not built yet: acts as error)" in cudaguard("doctor", env={"CUDAGUARD": mode}).stdout
