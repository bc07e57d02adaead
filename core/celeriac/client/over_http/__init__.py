"""The client over HTTP: what is sent, when it is sent again, and how answers are read.

`request`, `answers`, `problems`, `tries` and `story` know no connection; `blocking` and `awaited`
carry their words to the service and back, each in its own way.
"""
