"""`python -m examples.demo`: brings the lab up, plays the story, prints the checks. Exit status 1 if one failed."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from dynamig.cli.output import stdout, survive_any_encoding
from dynamig.errors import DynamigError
from examples.demo.checks import all_checks
from examples.demo.play import play
from examples.demo.screen import Screen
from examples.demo.stage import Stage, need_lab_of_the_story
from lab.lab import Lab, default_dir
from lab.progress import Reporter

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it (128 + SIGINT)."""

DESCRIPTION = (
    "Pods get slices of emulated GPUs on real Kubernetes, shown as it happens and checked at the end. "
    "The lab is in $DYNAMIG_LAB_DIR, else in .lab of the repository, and is brought up if it is not."
)
NEXT = """\
The lab still runs. Try next:
  eval "$(.venv/bin/python -m lab env)"      kubectl and dynamig talk to the lab
  kubectl apply -f examples/manifests/4-inference.yaml
  dynamig gpus                               who has which memory slices
  dynamig ps                                 which device each claim has
  make lab-down                              stop it and remove its files"""


def main() -> int:
    """The exit status: 0 if all checks passed, 1 if not or if it could not go on, 130 after Ctrl-C."""
    survive_any_encoding(sys.stdout, sys.stderr)
    argparse.ArgumentParser(prog="python -m examples.demo", description=DESCRIPTION).parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a build server's stop is a Ctrl-C
    errors = Console(stderr=True)
    try:
        return 0 if demo(default_dir(), stdout()) else 1
    except DynamigError as error:
        errors.print(Text.assemble(("error: ", "red"), error.what), soft_wrap=True)
        errors.print(Text.assemble(("next: ", "dim"), error.next_step or "make lab-status"), soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        text = "interrupted: `make demo` plays it again from the start, `make lab-down` removes the lab"
        errors.print(text, highlight=False, soft_wrap=True)
        return INTERRUPTED


def demo(directory: Path, console: Console) -> bool:
    """True if every check passed."""
    screen = Screen(console)
    screen.line("Bringing the lab up: etcd, Kubernetes, two nodes with two emulated H100 each")
    lab = Lab.create(directory, reporter=Reporter(console))
    need_lab_of_the_story(lab)
    lab.up()
    stage = Stage(lab, screen)
    with screen.live():
        stage.clear()
        stage.need_empty_gpus()
        evidence = play(stage, screen)
    checks = all_checks(evidence)
    screen.verdict(checks)
    console.print(NEXT, highlight=False, markup=False, soft_wrap=True)
    return all(check.passed for check in checks)


if __name__ == "__main__":
    sys.exit(main())
