"""What the records say: tables, figures, statistics and the status of sweeps."""
