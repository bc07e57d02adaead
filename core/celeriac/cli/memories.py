"""`celeriac memories`: what is remembered of users, and having it forgotten."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from celeriac.cli.environment import environment
from celeriac.cli.output import AsJson, By, brief, print_json, print_table
from celeriac.cli.starting import parse_json

if TYPE_CHECKING:
    from celeriac.reports import Memory

memories = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="What is remembered of users: list, show, decide, forget, export.",
)

User = Annotated[str, typer.Option("--user", metavar="USER", help="Whose memories.")]
Namespace = Annotated[str, typer.Option("--namespace", metavar="N", help="Where they belong.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="As it was remembered.")]
Limit = Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")]


@memories.command("list")
def list_(
    context: typer.Context,
    user: User,
    namespace: Annotated[
        str | None, typer.Option(metavar="N", help="Only of this namespace.")
    ] = None,
    query: Annotated[str, typer.Option(metavar="TEXT", help="What to look for.")] = "",
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """List what is remembered of a user, with its source and why it was kept.

    With --query at most 200: by words, and by meaning too where CELERIAC_EMBEDDER is set. Standard
    error says which.
    """
    with environment(context).client() as client:
        if query.strip():
            told = client.search_memories(query, user_id=user, namespace=namespace, limit=limit)
            typer.echo(f"searched by {' and '.join(told.found_by)}", err=True)
            found = told.memories
        else:
            found = client.memories(user, namespace=namespace, limit=limit)
    if as_json:
        for memory in found:
            print_json(memory)
        return
    print_table(
        ["namespace", "key", "kind", "version", "value", "source", "kept because", "changed"],
        [
            (
                memory.namespace,
                memory.key,
                memory.kind,
                memory.version,
                brief(memory.value),
                _source(memory),
                memory.reason,
                memory.changed_at,
            )
            for memory in found
        ],
        empty=f"nothing is remembered of {user}",
    )


@memories.command()
def decisions(
    context: typer.Context,
    user: User,
    only: Annotated[
        Literal["kept", "refused", "all"], typer.Option(help="Those that were, or were not.")
    ] = "all",
    run: Annotated[str | None, typer.Option(metavar="RUN", help="Only of this run.")] = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """List what was decided about candidates, the latest first. What was refused is not shown: of
    that only a hash is kept."""
    store = None if only == "all" else only == "kept"
    with environment(context).client() as client:
        found = client.memory_decisions(user, store=store, run_id=run, limit=limit)
    if as_json:
        for decision in found:
            print_json(decision)
        return
    print_table(
        ["decision", "kept", "reason", "namespace", "key", "kind", "origin", "proposed by", "run"],
        [
            (
                decision.decision_id,
                "yes" if decision.store else "no",
                decision.reason,
                decision.namespace,
                decision.key,
                decision.kind,
                decision.origin,
                decision.proposed_by,
                decision.run_id,
            )
            for decision in found
        ],
        empty="nothing was proposed",
    )


@memories.command()
def show(
    context: typer.Context,
    key: Key,
    user: User,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Show what is remembered under a key."""
    with environment(context).client() as client:
        memory = client.memory(key, user_id=user, namespace=namespace)
    if as_json:
        print_json(memory)
        return
    typer.echo(
        f"{memory.namespace}/{memory.key}, version {memory.version}, {memory.kind}, from "
        f"{_source(memory)}, kept because: {memory.reason}"
    )
    typer.echo(brief(memory.value, 10_000))


@memories.command()
def decide(
    context: typer.Context,
    key: Key,
    value: Annotated[
        str, typer.Option(metavar="JSON", help="What to remember; a text that is no JSON as it is.")
    ],
    user: User,
    kind: Annotated[Literal["semantic", "episodic"], typer.Option(help="What it is.")] = "semantic",
    namespace: Namespace = "default",
    replaces_version: Annotated[
        int | None, typer.Option(metavar="V", help="To change what is there: its version now.")
    ] = None,
    expires_days: Annotated[
        float | None, typer.Option(metavar="DAYS", help="When it is to be forgotten.")
    ] = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Put something in, for the default policy to decide about; exit 1 if it is not kept.

    How agents work is not decided here: they propose that, and `celeriac approve` decides.
    """
    with environment(context).client() as client:
        done = client.remember(
            key,
            _value(value),
            user_id=user,
            kind=kind,
            namespace=namespace,
            replaces_version=replaces_version,
            expires_days=expires_days,
            by=by,
        )
    if as_json:
        print_json(done)
    elif done.store:
        typer.echo(f"{namespace}/{key} of {user} is remembered, version {done.version}")
    else:
        typer.echo(f"not kept ({done.reason}): {done.why}", err=True)
    raise typer.Exit(0 if done.store else 1)


@memories.command()
def forget(
    context: typer.Context,
    key: Key,
    user: User,
    namespace: Namespace = "default",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Delete what is remembered under a key."""
    with environment(context).client() as client:
        client.forget(key, user_id=user, namespace=namespace, by=by)
    if as_json:
        print_json({"forgotten": True})
    else:
        typer.echo(f"{namespace}/{key} of {user} is forgotten")


@memories.command()
def export(context: typer.Context, user: User) -> None:
    """Print all that is remembered of a user, with what was decided, as one JSON document."""
    with environment(context).client() as client:
        print_json(client.export_memories(user))


def _source(memory: "Memory") -> str:
    place = "" if memory.run_id is None else f" in run {memory.run_id}"
    return f"{memory.origin}{place}"


def _value(text: str) -> object:
    from celeriac.cli.group import WrongUsage

    try:
        return parse_json(text, "--value")
    except WrongUsage:
        return text
