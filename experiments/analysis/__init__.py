"""What the records show: tables, figures, statistics, claims."""
