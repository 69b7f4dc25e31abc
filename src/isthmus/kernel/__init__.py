"""The kernel under every memory: logits, log-sum-exp attention and sparse attention."""
