"""The HTTP API of Celeriac: `celeriac api`."""
