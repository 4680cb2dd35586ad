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
from examples.demo.evidence import Check
from examples.demo.play import Play
from examples.demo.screen import Screen
from examples.demo.stage import Stage, need_lab_of_the_story
from lab.lab import Lab
from lab.progress import Reporter

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it (128 + SIGINT)."""

REPOSITORY = Path(__file__).resolve().parents[2]
HOOKS = REPOSITORY / "deploy/slurm"

DESCRIPTION = (
    "Native Slurm jobs, pods and a notebook share emulated GPUs on real Kubernetes and Slurm, shown as it happens and "
    "checked at the end."
)
NEXT = """\
The lab still runs. Try next:
  # kubectl and dynamig talk to the lab
  eval "$(.venv/bin/python -m lab env --dir {dir})"
  # a namespace whose pods are paid for in Slurm (here by the lab's default account, in dynamig-demo by alice: see
  # {dir}/bridge/bridge.yaml), and the notebook in it
  kubectl create namespace mine
  kubectl label namespace mine dynamig.io/scheduler=slurm
  kubectl -n mine apply -f examples/manifests/1-notebook.yaml
  # who has which memory slices, and which Slurm job pays; Slurm's side
  dynamig gpus; dynamig ps
  .venv/bin/python -m lab slurm squeue -o '%i %u %T %R %k'
  # stop it and remove its files
  make lab-down"""


def main() -> int:
    """The exit status: 0 if all checks passed, 1 if not or if it could not go on, 130 after Ctrl-C."""
    survive_any_encoding(sys.stdout, sys.stderr)
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=DESCRIPTION)
    parser.add_argument("--dir", type=Path, default=REPOSITORY / ".lab-slurm", help="the lab's folder")
    directory = parser.parse_args().dir
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a build server's stop is a Ctrl-C
    errors = Console(stderr=True)
    try:
        return 0 if demo(directory, stdout()) else 1
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
    screen.line("Bringing the lab up: Kubernetes, Slurm, and two nodes with two emulated H100 each")
    lab = Lab.create(directory, slurm_hooks=HOOKS, notebook=True, reporter=Reporter(console))
    need_lab_of_the_story(lab)
    lab.up()
    checks = checks_of(Stage(lab, screen), screen)
    screen.verdict(checks)
    here = directory.resolve()
    told = NEXT.format(dir=here.relative_to(Path.cwd()) if here.is_relative_to(Path.cwd()) else here)
    console.print(told, highlight=False, markup=False, soft_wrap=True)
    return all(check.passed for check in checks)


def checks_of(stage: Stage, screen: Screen) -> list[Check]:
    """The story was played. After Ctrl-C nothing of it is left either; a second one does not wait for that."""
    try:
        with screen.live():
            stage.tidy()
            stage.need_empty_gpus()
            return all_checks(Play(stage, screen).evidence())
    except KeyboardInterrupt:
        screen.line("interrupted: removing what the demo has made; a second Ctrl-C leaves it")
        stage.tidy()
        raise


if __name__ == "__main__":
    sys.exit(main())
