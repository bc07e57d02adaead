"""What the demo did, which the verdict then compares with what is left in the rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from celeriac.ids import WorkerId


@dataclass(frozen=True, slots=True)
class Order:
    """One piece of the one item there is."""

    order_id: str
    run_id: str


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL to the process group of the worker that held a step of an order."""

    order: Order
    step: int
    where: str  # in words
    worker_id: WorkerId
    pid: int
    killed_at: datetime  # by the database's clock, right before the signal


@dataclass(frozen=True, slots=True)
class Record:
    """Everything that happened."""

    orders: Sequence[Order]  # each for the first time
    kills: Sequence[Kill]
    emptied_at: datetime  # by the database's clock: the broker was killed, with all it held
    orders_at_loss: Sequence[Order]  # placed just before that
    unanswered: Order  # the notification was delivered, and its answer lost
    repeated: Order  # the first order once more, by a run of its own
    unattended: Order  # placed while no worker lived
