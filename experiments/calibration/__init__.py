"""What was tried, on CE and validation data alone, before the settings of an experiment were fixed."""
