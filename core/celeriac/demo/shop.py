"""The shop's own rows: the tables of the order desk, which are none of Celeriac's."""

import runpy
from collections import Counter
from collections.abc import Mapping
from typing import Any

from celeriac.demo.examples import ORDER_DESK
from celeriac_storage.database import Database

AGENT = "order-desk"
SKU = "A-7"
STOCK = 10
"""What `prepare` puts on the shelf."""


def load_order_desk() -> Mapping[str, Any]:
    """The names of the example's module. Takes a second or two: it imports pydantic-ai."""
    return runpy.run_path(str(ORDER_DESK))


class Shop:
    """Reads the business tables, as they are committed. They are in Celeriac's database, so that a
    deduction and its step are one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def in_stock(self) -> int:
        with self._database.connect() as connection:
            query = "SELECT quantity FROM order_desk.stock WHERE sku = %s"
            return int(connection.exec_driver_sql(query, (SKU,)).scalar_one())

    @property
    def deductions(self) -> Counter[str]:
        """How many finished deductions each order has in the log that commits with the stock."""
        with self._database.connect() as connection:
            rows = connection.exec_driver_sql(
                "SELECT order_id, count(*) FROM order_desk.side_effect_log"
                " WHERE step = 'deduct_inventory' AND result IS NOT NULL GROUP BY 1"
            )
            return Counter({row[0]: row[1] for row in rows})
