"""Words that may be said again under the same key; see the SQL beside this file."""

from pathlib import Path

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    sql = Path(__file__).with_name("0005_inbox_keys.sql").read_text(encoding="utf-8")
    # Straight to the driver: it takes many statements at once, and no colon or % means anything.
    driver = op.get_bind().connection.driver_connection
    assert driver is not None
    driver.execute(sql)
