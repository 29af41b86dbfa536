"""One scene of each kind of kernels, interpreted in a process of its own: what `make test` runs of them. In
`make test-all` are all scenes, and adapters, experts and sampling too."""

from __future__ import annotations

from tests.kernels.test_triton_step import needs_triton, run


@needs_triton
def test_a_step_prompts_pictures_and_experts_are_right_when_interpreted() -> None:
    lines = run("interpreted_few", interpret="1", seconds=300)
    heads = [i for i, line in enumerate(lines) if line[0] == "kind"]
    kinds = {lines[i][1]: lines[i + 1 : end] for i, end in zip(heads, [*heads[1:], len(lines)], strict=True)}
    assert {kind: len(said) for kind, said in kinds.items()} == {"step": 1, "prompts": 3, "tower": 1, "sparse": 1}
    (rows, hidden, logits, stored, unseen), (features, first, second, same, _) = *kinds["step"], *kinds["tower"]
    (_, *sparse, untouched, counted, _) = kinds["sparse"][0]
    errors = [hidden, logits, stored, features, first, second, *sparse, *(e for line in kinds["prompts"] for e in line)]
    assert rows == "3" and max(map(float, errors)) < 1e-5
    assert unseen == same == untouched == counted == "True"
