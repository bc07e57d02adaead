"""A whole Celeriac on this machine: database, broker, scheduler, workers and Flower, supervised."""
