"""What runs jobs: a pool of workers, the keeper of their leases, the calling of handlers."""
