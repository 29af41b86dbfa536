"""How the bundled model *glint* is made: scenes, prompts, tokenizer, model, training, export."""
