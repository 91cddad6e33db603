"""The PostgreSQL store: many machines, one server. Nothing of it is imported unless its URL is opened."""
