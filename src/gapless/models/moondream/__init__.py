"""The Moondream family, second and third generation: config, vision, text, region, templates."""
