"""Many processes on one store, some of which die or freeze; what each was told is judged in the end.

Each process keeps a history of its own, in the form of `tests.support.history`, whose judge is the oracle.
"""
