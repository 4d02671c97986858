"""From prompts to completions with log-probs. Knows no reward, no task and no training loop."""
