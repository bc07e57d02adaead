"""What runs may use and cost, and what was sent to a model; see the SQL beside this file."""

from pathlib import Path

from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    sql = Path(__file__).with_name("0011_budgets.sql").read_text(encoding="utf-8")
    # Straight to the driver: it takes many statements at once, and no colon or % means anything.
    driver = op.get_bind().connection.driver_connection
    assert driver is not None
    driver.execute(sql)
