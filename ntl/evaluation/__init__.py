"""Evaluation: generated answers, their scores, and the trivial predictors."""
