"""The Moondream 2 family: config, vision, text, region, templates."""
