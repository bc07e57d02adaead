"""Pruning, erasing, and what auditors see; see the SQL beside this file."""

from pathlib import Path

from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    # Straight to the driver: it takes many statements at once, and no colon or % means anything.
    driver = op.get_bind().connection.driver_connection
    assert driver is not None
    for part in sorted(Path(__file__).parent.glob("0017_*.sql")):
        driver.execute(part.read_text(encoding="utf-8"))
