"""Models with the heads and embeddings that encodings need; imported as late as transformers' own, which is slow."""
