"""Where the examples are that the demo plays with: the very files that people read."""

from pathlib import Path

_INSTALLED = Path(__file__).parents[1] / "examples"  # where the wheel carries them
_FOLDER = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[3] / "examples"

ORDER_DESK = _FOLDER / "order_desk.py"
NOTIFICATION_SERVICE = _FOLDER / "notification_service.py"
