"""The clients: they start runs, watch them, and tell them what people decide.

with Client("postgresql://localhost/shop", "redis://localhost:6379/0") as client:
    started = client.start("order-desk", {"order_id": "O-1001", "sku": "A-7", "quantity": 1})
    run = client.wait(started.run_id)
    print(run.status, run.result)

`Client(url="https://runs.example", token=…)` does the same over HTTP, and `AsyncClient` is awaited.
"""

from celeriac.client.async_client import AsyncClient
from celeriac.client.blocking_client import Client
from celeriac.client.named import user_or_default
from celeriac.schedule import NewSchedule
from celeriac.workspace.receipts import Receipt
from celeriac_storage.resolving import NotDone, TookEffect
from celeriac_storage.submitting import Failed, Result

__all__ = [
    "AsyncClient",
    "Client",
    "Failed",
    "NewSchedule",
    "NotDone",
    "Receipt",
    "Result",
    "TookEffect",
    "user_or_default",
]
