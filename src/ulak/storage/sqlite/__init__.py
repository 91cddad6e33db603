"""Jobs in one SQLite file: one machine, many processes, no server."""
