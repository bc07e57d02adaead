"""The roles of tokens of the HTTP API; what each may do is in `celeriac_api.authorization`."""

from enum import IntEnum


class Role(IntEnum):
    """A role has what those before it have."""

    USER = 0
    OPERATOR = 1
    ADMIN = 2

    @property
    def word(self) -> str:
        """As a token and a command name it."""
        return self.name.lower()


WORDS = [role.word for role in Role]
