"""The commands that `celeriac up` runs as services, as a program without all the others.

`celeriac` describes to Typer what each of its commands takes before it runs one: a tenth of a
second, which a stack would pay for each of its five processes at every start.
"""

from celeriac.cli import api, flower, processes
from celeriac.cli.application import application

app = application()
for command in (processes.worker, processes.scheduler, api.api, flower.flower):
    app.command()(command)


if __name__ == "__main__":
    app()
