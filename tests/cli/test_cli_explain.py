"""`explain`: a page for each slug."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from command_line import environment

SLUGS = [
    "fork-after-init", "inherited-tensor", "foreign-library", "worker-died", "lost-gpu", "unsendable-output", "pin-cuda-output",
    "ipc-broken", "rerouted", "cuda-ipc", "cuda-in-worker", "import-initialises", "forbidden-init", "internal",
]  # fmt: skip


@pytest.mark.parametrize("slug", SLUGS)
def test_every_slug_has_a_page_with_all_its_parts(cudaguard, slug):
    result = cudaguard("explain", slug)
    assert (result.returncode, result.stderr) == (0, "")
    page = result.stdout
    assert page.startswith(f"{slug} (")
    positions = [page.index(f"\n{part}\n") for part in ("What happened", "Why", "How to find it", "How to repair it", "How to silence it")]
    assert positions == sorted(positions)
    fixes = re.findall(r"^\d+\. ", page, re.M)
    assert 1 <= len(fixes) == page.count("Price: ")
    assert max(map(len, page.splitlines())) <= 110
    assert page.isascii()
    assert "\033" not in page


def test_pages_name_only_slugs_and_variables_that_exist(cudaguard):
    pages = "".join(cudaguard("explain", slug).stdout for slug in SLUGS)
    named = set(re.findall(r"explain ([a-z-]+)", pages)) | set(re.findall(r"CUDAGUARD_IGNORE=([a-z-]+)", pages))
    assert named <= set(SLUGS)
    assert set(re.findall(r"CUDAGUARD\w*", pages)) <= {"CUDAGUARD", "CUDAGUARD_IGNORE", "CUDAGUARD_REPORT"}


def test_the_list_names_every_slug_with_its_severity(cudaguard):
    lines = cudaguard("explain").stdout.splitlines()
    listed = [line.split()[:2] for line in lines if line.startswith("  ")]
    assert [slug for slug, _ in listed] == SLUGS
    assert dict(map(tuple, listed))["lost-gpu"] == "warning"


def test_the_slug_may_be_pasted_with_its_brackets(cudaguard):
    assert cudaguard("explain", "[worker-died]").stdout == cudaguard("explain", "worker-died").stdout


def test_a_wrong_slug_is_one_line_that_names_the_legal_ones(cudaguard):
    result = cudaguard("explain", "fork-before-init")
    assert (result.returncode, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
    assert all(slug in result.stderr for slug in SLUGS)


def test_explaining_loads_no_torch(cudaguard, python):
    result = python("-X", "importtime", "-m", "cudaguard", "explain", "fork-after-init")
    loaded = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines() if line.startswith("import time:")}
    assert "cudaguard._pages" in loaded
    assert not loaded & {"torch", "wrapt", "dataclasses"}


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "cudaguard", "explain", "fork-after-init"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        cwd=tmp_path,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)])
def test_colour_is_for_terminals_that_did_not_refuse_it(variables, coloured, tmp_path):
    import os
    import pty

    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "cudaguard", "explain", "internal"]
    process = subprocess.Popen(command, stdout=follower, env=environment(**{"TERM": "xterm", **variables}), cwd=tmp_path)
    os.close(follower)
    shown = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # Linux says so when the last writer has gone
            break
        if not piece:
            break
        shown += piece
    os.close(leader)
    assert process.wait(timeout=60) == 0
    assert b"Why" in shown
    assert (b"\033[1mWhy\033[0m" in shown) == coloured
