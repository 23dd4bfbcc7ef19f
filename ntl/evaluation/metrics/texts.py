"""Overlap of texts. References and answers are compared as they are but for white space at either end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ntl.evaluation.metrics.base import Undefined, metric


@metric("BLEU", better="higher", kind="score")
def bleu(generated: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU of sacrebleu (13a tokens, exponential smoothing), divided by 100.

    Undefined where no reference has four tokens: even a perfect answer would then have 0.
    """
    import sacrebleu

    value = sacrebleu.corpus_bleu(list(generated), [list(references)]).score / 100
    if value == 0 and sacrebleu.corpus_bleu(list(references), [list(references)]).score == 0:
        raise Undefined("no reference has the four words that BLEU counts in")
    return min(value, 1.0)  # sacrebleu may exceed 100 by rounding


@metric("ROUGE-1", better="higher", kind="score")
def rouge1(generated: Sequence[str], references: Sequence[str]) -> float:
    """Mean ROUGE-1 F1 of rouge-score, without stemming. Equal texts count 1 even where they hold no word."""
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.tokenizers import DefaultTokenizer

    scorer = RougeScorer(["rouge1"], tokenizer=DefaultTokenizer(use_stemmer=False))  # without one it logs a line a call
    pairs = zip(generated, references, strict=True)
    scores = [1.0 if ours == right else scorer.score(right, ours)["rouge1"].fmeasure for ours, right in pairs]
    return float(np.mean(scores))
