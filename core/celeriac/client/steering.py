"""What clients tell a run that goes on: to stop, or what its model or its code is to hear."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from celeriac.client.ask import Ask
from celeriac.client.named import run_named, user_or_default
from celeriac.client.operation import Operation
from celeriac.client.over_http.request import Flow
from celeriac.client.run import ask_run, stands
from celeriac.ids import RunId, UserId, checked_id
from celeriac.schemas import strict_json
from celeriac.states import RunStatus
from celeriac_storage import inbox, mailbox, requests

if TYPE_CHECKING:
    from celeriac.codec import JsonValue


@dataclass(frozen=True, slots=True)
class Cancel(Operation[RunStatus]):
    """Ask the run to end. Raises `UnknownRun`, or `Conflict` if it has ended otherwise."""

    run_id: RunId
    by: UserId

    def act(self, connection: Connection) -> RunStatus:
        return requests.request_cancel(connection, self.run_id, self.by)


@dataclass(frozen=True, slots=True)
class Interrupt(Operation[RunStatus]):
    """Ask the run to stop until its user speaks. Raises `UnknownRun` or `Conflict`."""

    run_id: RunId
    by: UserId

    def act(self, connection: Connection) -> RunStatus:
        return requests.request_interrupt(connection, self.run_id, self.by)


@dataclass(frozen=True, slots=True)
class Say(Operation[RunStatus]):
    """Tell the run's model something. Raises `UnknownRun`, `InvalidInput` or `Conflict`."""

    run_id: RunId
    text: str
    by: UserId
    key: str | None = None  # one of all runs' (`inbox.key_of_word`)

    def act(self, connection: Connection) -> RunStatus:
        from celeriac_storage.admitting import word

        return inbox.say(connection, self.run_id, word(self.text), self.by, self.key)


@dataclass(frozen=True, slots=True)
class SendEvent(Operation[RunStatus]):
    """Tell a workflow that something has happened. Raises as `Say` does."""

    run_id: RunId
    name: str
    data: object
    by: UserId
    key: str | None = None

    def act(self, connection: Connection) -> RunStatus:
        from celeriac_storage.admitting import event_data

        data = event_data(self.name, self.data)
        return mailbox.send(connection, self.run_id, self.name, data, self.by, self.key)


def cancel(run_id: str, *, by: str | None = None) -> Ask[RunStatus]:
    """Cancel the run, and return where it stands now.

    `cancelled` if nobody works on it just now; else `running`, and it ends when the step in
    progress is recorded. Asking again changes nothing. Raises `UnknownRun`, or `Conflict` if it
    has ended otherwise.
    """
    run, person = run_named(run_id), user_or_default(by)
    return Ask(
        lambda desk: desk.perform(Cancel(run, person), run),
        lambda: stands(ask_run(run, "cancel"), by),
    )


def interrupt(run_id: str, *, by: str | None = None) -> Ask[RunStatus]:
    """Stop the run until its user says something or it is cancelled; where it stands now.

    `paused` if nobody works on it just now; else `running`: a request to the model is cancelled
    within a second, a tool's call is seen to its end and recorded. Calls that nobody has begun
    are not made any more once the user has said something; the model is told so. Asking again
    changes nothing. Raises `UnknownRun` or `Conflict`.
    """
    run, person = run_named(run_id), user_or_default(by)
    return Ask(
        lambda desk: desk.perform(Interrupt(run, person), run),
        lambda: stands(ask_run(run, "interrupt"), by),
    )


def say(run_id: str, text: str, *, by: str | None = None, key: str | None = None) -> Ask[RunStatus]:
    """Tell the run's model something, and return where the run stands now.

    The model is told once and in order, when it is asked next: after the results of the calls
    that it has asked for, and instead of the run's end if it has just given its last answer. A
    run that waits for its user goes on. With a `key` of your own, such as a UUID, it is safe to
    say it again after an error: it is told once. Raises `UnknownRun`, `InvalidInput`, or
    `Conflict` if the run has ended, or was told something else under the key.
    """
    run, person = run_named(run_id), user_or_default(by)
    word = None if key is None else inbox.key_of_word(run, checked_id(key, "key"))
    body: dict[str, JsonValue] = {"text": text} if key is None else {"text": text, "key": key}
    return Ask(
        lambda desk: desk.perform(Say(run, text, person, word), run),
        lambda: stands(
            ask_run(
                run,
                "messages",
                body,
                if_lost="It is not known whether the run was told"
                + ("" if key is None else "; to say it again under the same key is safe"),
            ),
            by,
        ),
    )


def send_event(
    run_id: str, name: str, data: object = None, *, by: str | None = None, key: str | None = None
) -> Ask[RunStatus]:
    """Tell a workflow that something has happened (`ctx.wait_event`); where it stands now.

    Each event goes to one who waits for that name; it is kept until its code does. `data` is any
    JSON. With a `key` of your own it is safe to tell it again after an error: it is told once.
    Raises `UnknownRun`, `InvalidInput`, or `Conflict` if the run is no workflow, has ended, or was
    told something else under the key.
    """
    run, person = run_named(run_id), user_or_default(by)
    own_key = None if key is None else checked_id(key, "key")

    def over_http() -> Flow[RunStatus]:
        body: dict[str, JsonValue] = {"name": name, "data": strict_json(data)}
        if own_key is not None:
            body["key"] = own_key
        lost = "It is not known whether the run was told" + (
            "" if own_key is None else "; to tell it again under the same key is safe"
        )
        return stands(ask_run(run, "events", body, if_lost=lost), by)

    return Ask(
        lambda desk: desk.perform(SendEvent(run, name, data, person, own_key), run), over_http
    )
