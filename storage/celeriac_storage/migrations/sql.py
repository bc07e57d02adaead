"""What every migration does: it executes the SQL that lies beside it."""

from pathlib import Path

from alembic import op

_VERSIONS = Path(__file__).with_name("versions")


def execute(revision: str) -> None:
    """Execute the SQL files of a revision, `REVISION_*.sql`, in the order of their names.

    Raises `FileNotFoundError` if there is none.
    """
    files = sorted(_VERSIONS.glob(f"{revision}_*.sql"))
    if not files:
        raise FileNotFoundError(f"there is no {_VERSIONS / revision}_*.sql")
    # Straight to the driver: it takes many statements at once, and no colon or % means anything.
    driver = op.get_bind().connection.driver_connection
    assert driver is not None
    for file in files:
        driver.execute(file.read_text(encoding="utf-8"))
