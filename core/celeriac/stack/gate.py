"""What holds up services that have been started early, until they may go on."""

import os


class Gate:
    """A pipe in which nothing is ever written: it ends when the gate is opened, or with us.

    A service has its reading end as its standard input, imports its code, and waits for the end
    of the input before it does anything else (`celeriac.cli.service`).
    """

    def __init__(self) -> None:
        self.input, self._ours = os.pipe()
        self.is_open = False

    def open(self) -> None:
        """Let all go on, and whoever comes later."""
        if not self.is_open:
            os.close(self._ours)
            self.is_open = True

    def close(self) -> None:
        """When no service is to be started any more."""
        self.open()
        os.close(self.input)
