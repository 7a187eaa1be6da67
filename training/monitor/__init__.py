"""What a run prints and logs: it never changes a weight."""
