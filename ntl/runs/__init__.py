"""Runs: identity, lease, record, tracking, and the execution of one run."""
