"""The rule: which tokens may come next and what they mean. Pure; knows neither rows nor streams."""
