"""The command `cookbook`, one module a subcommand, each imported only when it is called."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import click

from cookbook.errors import CookbookError, Interrupted

__all__ = ["main"]

COMMANDS = {
    "list": "The recipes, their status, and what goes with which hardware.",
    "show": "The exact commands, for bash, docker, compose, slurm or kubernetes.",
    "check": "Hold commands against vLLM's own parser.",
    "capacity": "What fits into the memory of a recipe's devices.",
    "doctor": "Whether this machine has what a recipe needs.",
    "drift": "What vLLM's own recipe for the model says otherwise.",
    "run": "Run a recipe under papermill: server, examples, checks, evidence.",
    "evidence": "What runs have recorded.",
    "site": "Build or serve the site.",
}


class Commands(click.Group):
    """Loads a subcommand's module when it is called: `cookbook list` must not pay for papermill."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]  # the subcommand's module `list` hides the builtin here

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"cookbook.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CookbookError as error:
            click.echo(f"cookbook: {error}", err=True)
            tail = getattr(error, "log_tail", "")
            if tail:
                click.echo(f"\nThe end of the log:\n{tail}", err=True)
            ctx.exit(128 + error.signum if isinstance(error, Interrupted) else error.exit_code)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="cookbook")
def main() -> None:
    """Recipes that serve moonshotai/Kimi-K3.1-Pro with vLLM, and check that they do.

    \b
    Exit codes: 0 all checks hold, 1 a check fell short, 2 bad input, 3 the server did not come up or died,
    4 timed out, 130 or 143 interrupted.
    """


def echo_json(value: Any) -> None:
    """Print a value for a program."""
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")
