"""What the losses cost in time and memory."""
