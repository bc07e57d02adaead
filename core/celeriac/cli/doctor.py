"""`celeriac doctor`: every setting, and whether everything is there that Celeriac needs."""

from typing import TYPE_CHECKING, Any

import typer

from celeriac.cli.environment import environment
from celeriac.cli.output import AsJson, console, print_json, table

if TYPE_CHECKING:
    from celeriac.settings import Settings


def doctor(context: typer.Context, as_json: AsJson = False) -> None:
    """List all settings and check the servers, the schema, the agents and the workers.

    Exits with 1 if a check fails; a warning is no failure.
    """
    from celeriac.cli.checks import check_all

    settings = environment(context).settings()
    checks = check_all(settings)
    is_ok = all(check.state != "fail" for check in checks)
    if as_json:
        print_json({"ok": is_ok, "settings": _told(settings), "checks": checks})
    else:
        out = console()
        out.print(
            table(
                ["setting", "value", "default", "what it is"],
                [
                    (each["name"], each["value"], each["default"], each["description"])
                    for each in _told(settings)
                ],
            )
        )
        out.print(
            table(
                ["check", "", "finding"],
                [(check.check, check.state, check.detail) for check in checks],
            )
        )
    raise typer.Exit(0 if is_ok else 1)


def _told(settings: "Settings") -> list[dict[str, Any]]:
    """Each setting under its environment variable, secrets masked."""
    from pydantic import SecretStr

    told = []
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, SecretStr):
            value = _masked(name, value.get_secret_value())
        told.append(
            {
                "name": f"CELERIAC_{name.upper()}",
                "value": value,
                "default": field.default,
                "description": field.description,
            }
        )
    return told


def _masked(name: str, secret: str) -> str:
    """What may be shown of a secret: where a URL leads, who the user is, else nothing."""
    from celeriac.secrets import REDACTED, redact_url

    if name.endswith("_url"):
        return redact_url(secret)
    if name.endswith("_auth"):
        return f"{secret.partition(':')[0]}:{REDACTED}"
    return REDACTED
