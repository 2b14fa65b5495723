"""How `uaii bench` measures: child processes that run one engine each, the rounds, and what is told of them."""
