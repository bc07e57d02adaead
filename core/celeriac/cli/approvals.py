"""Proposals and what people decide: `celeriac approvals`, `approve`, `edit` and `reject`.

A proposal's id names one version of one call, which never changes, so whoever decides by id decides
about exactly what that id was shown with. `--hash` says once more what was seen.
"""

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from celeriac.cli.environment import environment
from celeriac.cli.group import WrongUsage
from celeriac.cli.output import AsJson, By, brief, cell, clock, console, print_json
from celeriac.states import ApprovalStatus

if TYPE_CHECKING:
    from rich.console import RenderableType

    from celeriac.client import Client
    from celeriac.reports import Approval, Decided

IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The proposal, as `approvals` lists it.")
]
Hash = Annotated[
    str | None,
    typer.Option("--hash", metavar="H", help="The `arguments_hash` that you were shown."),
]
Answers = Annotated[
    list[str] | None,
    typer.Option("--answer", help="To the checklist's questions, one option each, in their order."),
]
Reason = Annotated[str, typer.Option(help="Why; it is kept with the decision.")]

LONGEST_VALUE_CHARACTERS = 4000


def approvals(
    context: typer.Context,
    status: Annotated[
        Literal[ApprovalStatus, "all"], typer.Option(help="Only proposals of this status.")
    ] = "pending",
    run: Annotated[str | None, typer.Option(metavar="RUN", help="Only of this run.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 100,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """List the proposals that wait for a person, the oldest first."""
    with environment(context).client() as client:
        found = client.approvals(
            status=None if status == "all" else status, run_id=run, limit=limit, by=by
        )
    if as_json:
        for proposal in found:
            print_json(proposal)
        return
    if not found:
        typer.echo("no proposals" if status == "all" else f"no proposals are {status}")
    for proposal in found:
        console().print(_drawn(proposal))


def approve(
    context: typer.Context,
    approval_id: IdArgument,
    shown_hash: Hash = None,
    answer: Answers = None,
    reason: Reason = "",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Approve a call exactly as it is proposed. On a terminal, without --hash, it asks first."""
    with environment(context).client() as client:
        proposal = _shown(client, approval_id, by)
        answers = _answers(proposal, answer, as_json=as_json)
        if shown_hash is None and _asks(as_json=as_json):
            typer.confirm("Approve it?", abort=True)
        decided = client.approve(
            approval_id,
            by=by,
            hash=shown_hash or proposal.arguments_hash,
            reason=reason,
            answers=answers,
        )
        _print(client, decided, as_json=as_json)


def edit(
    context: typer.Context,
    approval_id: IdArgument,
    arguments: Annotated[
        str, typer.Option(metavar="JSON", help="All arguments as they should be; - reads stdin.")
    ],
    shown_hash: Hash = None,
    answer: Answers = None,
    reason: Reason = "",
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Propose other arguments, and approve them if your approval is enough for them."""
    with environment(context).client() as client:
        proposal = _shown(client, approval_id, by)
        decided = client.edit(
            approval_id,
            sys.stdin.read() if arguments == "-" else arguments,
            by=by,
            hash=shown_hash or proposal.arguments_hash,
            reason=reason,
            answers=_answers(proposal, answer, as_json=as_json),
        )
        _print(client, decided, as_json=as_json)


def reject(
    context: typer.Context,
    approval_id: IdArgument,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; the model is told it.")],
    shown_hash: Hash = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Reject a call: it is never executed. The model is told why, or the run ends."""
    with environment(context).client() as client:
        proposal = _shown(client, approval_id, by)
        decided = client.reject(
            approval_id, reason, by=by, hash=shown_hash or proposal.arguments_hash
        )
        _print(client, decided, as_json=as_json)


def _shown(client: "Client", approval_id: str, by: str | None) -> "Approval":
    """Print the proposal, and record that: what nobody was shown, nobody can decide."""
    proposal = client.approval(approval_id, by=by)
    console(to_stderr=True).print(_drawn(proposal))  # standard output is for what came of it
    return proposal


def _asks(*, as_json: bool) -> bool:
    return not as_json and sys.stdin.isatty() and sys.stdout.isatty()


def _answers(proposal: "Approval", given: list[str] | None, *, as_json: bool) -> dict[str, str]:
    """By question. On a terminal it asks those that were not answered by an option."""
    listed = proposal.requirement["checklist"]
    questions = [str(each) for each in listed] if isinstance(listed, list) else []
    if given and len(given) > len(questions):
        raise WrongUsage(
            f"{len(given)} times --answer, but the checklist has {len(questions)} questions"
        )
    answers = dict(zip(questions, given or (), strict=False))
    if _asks(as_json=as_json) and given is None:
        answers = {question: typer.prompt(question) for question in questions}
    return answers


def _print(client: "Client", decided: "Decided", *, as_json: bool) -> None:
    if as_json:
        print_json(decided)
        return
    counted = f" ({decided.approvals} of {decided.quorum} approvals)"
    typer.echo(
        f"call {decided.call_id} of run {decided.run_id} is {decided.status} as "
        f"{decided.approval_id}" + (counted if decided.status == "pending" else "")
    )
    waiting = client.get(decided.run_id)
    typer.echo(f"run {decided.run_id} is {waiting.status}")


def _drawn(proposal: "Approval") -> "RenderableType":
    """All that a reviewer is shown."""
    from rich.table import Table

    drawn = Table.grid(padding=(0, 2))
    drawn.add_column(style="dim", no_wrap=True)
    drawn.add_column(overflow="fold")
    needed = proposal.requirement
    expires = clock(proposal.expires_at) if proposal.expires_at else "never"
    rows: list[tuple[str, object]] = [
        ("proposal", proposal.approval_id),
        ("status", proposal.status),
        ("run, call", f"{proposal.run_id}, {proposal.call_id} (version {proposal.version})"),
        ("tool", proposal.tool),
        ("arguments", proposal.arguments),
        ("hash", proposal.arguments_hash),
        ("intent", proposal.intent),
        ("why asked", proposal.reason),
        ("blast radius", proposal.blast_radius),
        ("touches", ", ".join(proposal.permissions_touched)),
        ("data from", list(proposal.data_lineage)),
        ("rollback", proposal.rollback_plan.get("kind")),
        ("key", proposal.idempotency_key),
        ("asked for by", proposal.requested_by),
        ("approved by", f"{', '.join(proposal.approved_by) or 'nobody'} of {needed['quorum']}"),
        ("roles", needed["roles"] or "any other person"),
        ("checklist", needed["checklist"] or "none"),
        ("expires (UTC)", expires),
    ]
    for name, value in rows:
        drawn.add_row(name, cell(brief(value, LONGEST_VALUE_CHARACTERS)))
    drawn.add_row("", "")
    return drawn
