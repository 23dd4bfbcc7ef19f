"""Training: the library's Trainer with an objective's loss."""
