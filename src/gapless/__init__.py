"""gapless: vision-language inference with no gaps between steps."""

__version__ = "0.1.0"
