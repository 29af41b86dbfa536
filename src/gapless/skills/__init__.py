"""The question: prompt in, parsed answer out. Pure; does not know the engine."""
