"""The ``molflt`` command."""

from __future__ import annotations

import os
import re
import sys
from functools import partial
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from molflt import __version__
from molflt.cli import terminal
from molflt.errors import InputError

_COMMANDS = {
    "train": "train",
    "evaluate": "evaluate",
    "benchmark": "benchmark",
    "predict": "predict",
    "merge": "predict",
    "adsorb": "adsorb",
    "explain": "inspect",
    "plot": "models",
    "check-invariance": "evaluate",
    "info": "inspect",
    "convert": "data",
    "prepare": "data",
    "average": "models",
    "export": "models",
    "config": "train",
    "fetch": "data",
}
"""Commands in the order of the help, with the modules that hold them, imported when called."""
_FORMER = {"--frequencies": "--far-field-method"}
"""Deprecated options and what replaces them, for one release."""
_HOW_MUCH = ("--quiet", "-q", "--verbose", "-v")


_KINDS = {"path": "PATH", "str": "TEXT", "list[str]": "TEXT", "int": "N", "int range": "N"}
"""Values of options as the help names them, by typer's names."""


class _Plain:
    """Name arguments and values as manuals do: typer's help would say ``{model}``, ``<list[str]>`` and ``<bool>``."""

    def get_params(self, ctx: Any) -> Any:
        parameters = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if isinstance(parameter, TyperArgument):
                name = parameter.metavar or parameter.name.upper() + "..." * (parameter.nargs != 1)
                parameter.metavar, usage = name, name if parameter.required else f"[{name}]"
                parameter.get_usage_pieces = partial(_always, [usage])  # type: ignore[method-assign]
                parameter.display_type_rich = partial(_always, None)  # type: ignore[method-assign]
            elif getattr(parameter, "is_flag", False):
                parameter.metavar = ""
            elif parameter.metavar is None and hasattr(parameter, "display_type"):
                kind = parameter.display_type(ctx).strip("<>")
                parameter.metavar = _KINDS.get(kind, kind)
        return parameters


def _always(value: Any, ctx: Any) -> Any:
    return value


class _Command(_Plain, TyperCommand):
    pass


class _Commands(_Plain, TyperGroup):
    """Accept ``--quiet`` and ``--verbose`` before or after a command's name."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # Only the names, for lists and suggestions.
        self.commands: Any = dict.fromkeys(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _COMMANDS:
            return None
        module = import_module(f"molflt.cli.{_COMMANDS[cmd_name]}")
        alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
        alone.command(cmd_name, cls=_Command)(getattr(module, f"{cmd_name.replace('-', '_')}_command"))
        command = typer.main.get_command(alone)
        # Typer breaks lines where the source does.
        command.help = re.sub(r"(?<=\S)\n(?=\S)", " ", command.help or "")
        return command

    def make_context(self, info_name: Any, args: list[str], *arguments: Any, **options: Any) -> Any:
        own = args[: args.index("--")] if "--" in args else args
        for former in {word.partition("=")[0] for word in own} & _FORMER.keys():
            terminal.warn(f"{former} is now {_FORMER[former]}")
            own = [re.sub(f"^{former}(?==|$)", _FORMER[former], word) for word in own]
        first = [word for word in own if word in _HOW_MUCH]
        args = [*first, *(word for word in own if word not in _HOW_MUCH), *args[len(own) :]]
        return super().make_context(info_name, args, *arguments, **options)


app = typer.Typer(
    name="molflt",
    cls=_Commands,
    help="Train and use machine-learned energy models and force fields for molecules, surfaces and crystals.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    epilog=(
        "Exit status: 0 done; 1 a check failed, or an error of the system; 2 invalid input; "
        "3 internal error; 130 interrupted. NO_COLOR=1 turns colours off."
    ),
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"molflt {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="Results and errors only: no progress, no remarks."),
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Also details and tracebacks."),
) -> None:
    if quiet and verbose:
        raise InputError("--quiet and --verbose: choose one")
    terminal.Verbosity.set(quiet, verbose)


def main() -> None:
    """Run a command.

    Invalid input is one message and status 2, an error of the system (disk full, no permission) status 1, an
    interruption status 130, and an internal error status 3.
    """
    terminal.open_streams()
    terminal.prepare_streams()
    terminal.show_input_warnings()
    # Large pages for large arrays: with small ones, a mesh on a CPU takes twice as long. PyTorch reads this setting
    # once, when it first allocates memory.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    try:
        app()
    except SystemExit as stop:
        # Typer makes a status of Ctrl-C.
        if isinstance(getattr(stop.__context__, "__cause__", None), KeyboardInterrupt):
            terminal.errors.print("Interrupted. Repeat the command.", style="yellow")
        # A pipe's reader, such as head, may stop early, which is no failure; click and rich end with status 1.
        enough = isinstance(stop.__context__, BrokenPipeError)
        try:
            if not enough and sys.stdout is not None:
                sys.stdout.flush()
        except BrokenPipeError:
            enough = not stop.code
        if not enough:
            raise
        terminal.forget_output()
        sys.exit(0)
    except InputError as error:
        terminal.show_place()
        terminal.errors.print("Error:", str(error), style="red", markup=False)
        sys.exit(2)
    except OSError as error:
        terminal.show_place()
        terminal.errors.print("Error:", terminal.system_error(error), style="red", markup=False)
        try:
            sys.stdout.flush()
        except OSError:
            terminal.forget_output()
        sys.exit(1)
    except KeyboardInterrupt:
        terminal.errors.print("Interrupted. Repeat the command.", style="yellow")
        sys.exit(130)
    except Exception as error:
        terminal.show_place()
        terminal.errors.print("Error:", terminal.defect(error), style="red", markup=False)
        sys.exit(3)


if __name__ == "__main__":
    main()
