"""Every program of the conformance suite runs to its end, and nothing in it fails inside the shadow."""

import json

import conformance
import pytest
import torch
from conformance import too_old

# Programs whose every line is a value: an exception there is a fault of ours.
CALM = ["factories", "generators", "modules"]
EXPECTED = {
    ("factories", "pin of cuda"),
    ("generators", "cpu generator on cuda"),
    ("generators", "cuda generator on cpu"),
    ("modules", "cpu input"),
}
OURS = ("AttributeError", "AssertionError", "RecursionError", "NameError", "KeyError")
EXPECTED_OURS = {("queries", "bad device"), ("layouts", "jagged mixed parts")}  # torch raises AssertionError there


@pytest.mark.parametrize("name", conformance.names())
def test_a_program_runs_to_its_end(name, printed):
    lines = printed(name)
    assert lines.get("ended") is None
    assert lines
    faults = {line: value for line, value in lines.items() if value.startswith(tuple(f"!! {kind}" for kind in OURS)) and not too_old(line, value)}
    assert {(name, line) for line in faults} <= EXPECTED_OURS, faults


@pytest.mark.parametrize("name", CALM)
def test_every_line_is_a_value(name, printed):
    failed = {(name, line) for line, value in printed(name).items() if value.startswith("!!")}
    assert failed == {pair for pair in EXPECTED if pair[0] == name}


def test_the_comparison_sees_a_difference(capsys):
    def found(value):
        return {"torch": "0", "programs": {"p": {"line": value}}}

    assert conformance.compare(found("cuda:0 [1.0, 2.0]"), found("cuda:0 [1.0001, 2.0]")) == 0
    for other in ("cuda:1 [1.0, 2.0]", "cuda:0 [1.0, 2.1]", "cuda:0 [1.0]", "!! RuntimeError: no"):
        assert conformance.compare(found("cuda:0 [1.0, 2.0]"), found(other)) == 1


@pytest.mark.skipif(
    not hasattr(torch, "AcceleratorError"), reason="torch before 2.8 lacks some of it, and says some in other words than the recorded one"
)
@pytest.mark.parametrize("recorded", sorted(conformance.HERE.glob("*.json")), ids=lambda path: path.stem)
def test_the_simulated_device_prints_what_a_gpu_printed(recorded, printed):
    there = json.loads(recorded.read_text())
    here = {"torch": conformance.version(), "programs": {name: printed(name) for name in conformance.names()}}
    assert conformance.compare(here, there) == 0
