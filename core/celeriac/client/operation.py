"""What somebody asks for, as all that happens for it in one transaction.

Each operation stands beside the client's function that asks for it. The client performs them as
they are; the HTTP API adds who may ask, and an idempotency key, to the same transaction.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from sqlalchemy import Connection

from celeriac.errors import CeleriacError
from celeriac_storage.tenancy import Transactions

Answer = TypeVar("Answer")


class Operation(Generic[Answer]):
    """One thing that somebody asks for."""

    def act(self, connection: Connection) -> Answer:
        """Do it, all in this transaction. Raises `CeleriacError`; then roll it back."""
        raise NotImplementedError

    def is_noted(self, refused: CeleriacError) -> bool:
        """Whether a refusal for this reason is recorded."""
        return False

    def note_refusal(self, connection: Connection, refused: CeleriacError) -> None:
        """Record it, in a transaction of its own."""

    def finish(self, transactions: Transactions) -> None:
        """What comes after the commit. Raises nothing if the broker is away."""


def perform(
    transactions: Transactions,
    operation: Operation[Answer],
    check: Callable[[Connection], None] = lambda _: None,
) -> Answer:
    """Do it and record it, or record that it was refused, and raise why.

    `check` raises if it may not even be tried, and nothing is recorded.
    """
    is_acting = False
    try:
        with transactions.begin() as connection:
            check(connection)
            is_acting = True
            answer = operation.act(connection)
    except CeleriacError as refused:
        if is_acting and operation.is_noted(refused):
            with transactions.begin() as connection:
                operation.note_refusal(connection, refused)
        raise
    operation.finish(transactions)
    return answer
