"""What a window costs besides compute: ``python -m bench.averaging``."""
