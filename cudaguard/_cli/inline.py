"""`run --inline-workers`: every loader without workers, the classic way to find out whether making processes is to blame."""

from __future__ import annotations

import os
from collections.abc import Sequence

from .. import _config
from . import UsageError, blocks, history, program, watched
from .watched import Event, Outcome

FETCHING = "/torch/utils/data/_utils/fetch.py"


def run(words: Sequence[str], options: dict[str, str]) -> tuple[int, str]:
    """Run a program so. Gives its exit code, and what that proves."""
    program.check(list(words))
    if _config.forced_off(os.environ) or options.get("mode") in ("off", "0"):
        raise UsageError("--inline-workers needs the guard: it is off")
    outcome = watched.watch(words, options, {"_CUDAGUARD_INLINE": "1"})
    return outcome.code or 0, "\n".join(_proof(outcome))


def _proof(outcome: Outcome) -> list[str]:
    changed = [event for event in outcome.events if event["name"] == "loader inlined"]
    if not changed:
        return ["", "cudaguard: no loader of this program used workers, so nothing was changed, and nothing is proved."]
    return ["", f"cudaguard: these loaders ran without workers (num_workers=0), {_ended(outcome)}:", *map(_loader, changed), *_proved(outcome)]


def _ended(outcome: Outcome) -> str:
    code = outcome.code or 0
    return (
        "and the program ended well"
        if code == 0
        else f"and the program still failed (exit code {code})"
        if code > 0
        else f"and signal {-code} ended it"
    )


def _loader(event: Event) -> str:
    args = event["args"]
    return f"  {blocks.place(args):<44}  num_workers={args['num_workers']}\n              {args['code']}"


def _proved(outcome: Outcome) -> list[str]:
    """What it proves, and what it does not."""
    if outcome.code:
        return [
            "It fails without workers too: forking a loader's workers is not to blame for this failure. Read its own message.",
            *(["Other children are: see the findings above."] if any(f["severity"] == "error" for f in outcome.findings) else []),
        ]
    told = history.read(outcome)
    if told.first is None:
        return ["CUDA was not used at all in this run: if the program fails with workers, CUDA and forks are not to blame, but workers are."]
    fetching = next((step for step in told.steps if any(FETCHING in frame["file"] for frame in step.site["stack"])), None)
    return [
        "The data and the code that makes it are in order. If the program fails with workers, then making processes is to blame:",
        "CUDA was up in the main process, and a forked worker that touches it fails. `python -m cudaguard check` names the lines.",
        *([f"Here {blocks.place(fetching.site)} used CUDA while a batch was made: in a forked worker that is such a touch."] if fetching else []),
    ]
