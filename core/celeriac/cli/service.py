"""The commands that `celeriac up` runs as services, as a program without all the others.

`celeriac` describes to Typer what each of its commands takes before it runs one: a tenth of a
second, which a stack would pay for each of its five processes at every start. And these are started
before the servers that they need: they import what they run, and go on when their standard input
ends (`celeriac.stack.gate`).
"""

import sys
from importlib import import_module

from celeriac.cli import api, flower, processes
from celeriac.cli.application import application
from celeriac.cli.loading import loading

app = application()
for command in (processes.worker, processes.scheduler, api.api, flower.flower):
    app.command()(command)

CODE = {
    "worker": "celeriac_tasks.worker_service",
    "scheduler": "celeriac_scheduler.scheduler",
    "api": "celeriac_api.server",
    "flower": "celeriac_tasks.flower",
}


def main(command: str) -> None:
    """Load what `command` runs, wait for the end of the input, and run it."""
    with loading():
        import_module(CODE[command])
    sys.stdin.read()
    app()


if __name__ == "__main__":
    main(sys.argv[1])
