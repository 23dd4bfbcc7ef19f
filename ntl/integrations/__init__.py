"""The losses in other people's trainers."""
