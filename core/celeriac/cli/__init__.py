"""The command line. `main.app` is the program; each module here holds the commands of one noun.

Modules import what a command needs inside the command: `celeriac --help` loads neither SQLAlchemy
nor Celery nor pydantic-ai.
"""
