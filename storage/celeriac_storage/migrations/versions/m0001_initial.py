"""The first schema; the SQL beside this file is the whole of it."""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    sql = Path(__file__).with_name("0001_initial.sql").read_text(encoding="utf-8")
    # Straight to the driver: it takes many statements at once, and no colon or % means anything.
    driver = op.get_bind().connection.driver_connection
    assert driver is not None
    driver.execute(sql)
