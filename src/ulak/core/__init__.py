"""The rule book: pure values and functions. No clock, randomness, I/O, threads or logging."""
