"""What late reports settle; see the SQL beside this file."""

from pathlib import Path

from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    sql = Path(__file__).with_name("0013_late_reports.sql").read_text(encoding="utf-8")
    # Straight to the driver: it takes many statements at once, and no colon or % means anything.
    driver = op.get_bind().connection.driver_connection
    assert driver is not None
    driver.execute(sql)
