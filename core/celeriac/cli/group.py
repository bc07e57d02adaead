"""How the whole command line behaves: where options may stand, and how errors are told."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from celeriac.errors import CeleriacError, NotAllowed

GLOBAL_OPTIONS = ("--url", "--tenant", "--database-url", "--broker-url", "--data", "--agents")

_ANOTHER = ". Somebody else does it with `--as USER`, or over HTTP with a token of their own"


class WrongUsage(typer.TyperException):
    """The command cannot even be tried as it was given."""

    exit_code = 2


class CommandGroup(TyperGroup):
    """Tells every expected error as one line on standard error, and takes the global options
    anywhere: `celeriac worker --agents shop.py` does as well as `celeriac --agents shop.py worker`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args:
            return super().parse_args(ctx, args)  # shows the help
        with _told():
            return super().parse_args(ctx, _with_global_options_first(args))

    def invoke(self, ctx: Any) -> Any:
        with _told():
            return super().invoke(ctx)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except typer.TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # Typer does not export it
            raise  # its message is the whole help, which Typer shows as it is
        _tell(error.format_message())
        raise typer.Exit(error.exit_code) from error
    except (CeleriacError, TimeoutError) as error:
        _tell(str(error) + (_ANOTHER if isinstance(error, NotAllowed) else ""))
        raise typer.Exit(1) from error
    except Exception as error:
        # By name: `celeriac --help` must not import a driver to know its errors.
        if type(error).__module__.partition(".")[0] not in ("sqlalchemy", "psycopg"):
            raise
        from celeriac_storage.refusal import refusal

        _tell(refusal(error))
        raise typer.Exit(1) from error


def _tell(message: str) -> None:
    line = " ".join(message.split())
    typer.echo(f"Error: {line}", err=True)


def _with_global_options_first(args: Sequence[str]) -> list[str]:
    first: list[str] = []
    rest: list[str] = []
    remaining = iter(args)
    for arg in remaining:
        if arg == "--":
            rest += [arg, *remaining]
        elif arg in GLOBAL_OPTIONS:
            first += [arg, *_next(remaining)]
        elif arg.partition("=")[0] in GLOBAL_OPTIONS:
            first.append(arg)
        else:
            rest.append(arg)
    return first + rest


def _next(remaining: Iterator[str]) -> list[str]:
    value = next(remaining, None)
    return [] if value is None else [value]
