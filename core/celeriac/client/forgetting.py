"""What clients ask to have somebody forgotten."""

from celeriac.client.ask import Ask
from celeriac.client.named import user_named, user_or_default
from celeriac.client.over_http.answers import reader
from celeriac.client.over_http.request import Flow, post, refuse_speaker
from celeriac_storage import erasing
from celeriac_storage.erasing import Erased, Scope


def erase_user(user_id: str, *, cancel: bool = False, by: str | None = None) -> Ask[Erased]:
    """Erase all payloads of the user, for good (docs/retention.md); what was erased.

    Refused with `Conflict` while one of the user's runs is not at rest; with `cancel`, those that
    go on are cancelled first. After an error say it again: it goes on where it was stopped. Raises
    `InvalidInput` if there is no such user, and `NotSetUp` if the login may not erase.
    """
    user, person = user_named(user_id), user_or_default(by)

    def over_http() -> Flow[Erased]:
        refuse_speaker(by)
        return reader(Erased)((yield post(f"/v1/users/{user}/erase", {"cancel": cancel})))

    return Ask(
        lambda desk: erasing.erase(
            desk.ready(), Scope(desk.tenant_id, user_id=user), person, cancels=cancel
        ),
        over_http,
    )
