"""The GPU's comparison of glint's evaluation by two sets of kernels, without a GPU: one scene, both the reference."""

from __future__ import annotations

import json

import pytest
from tests.gpu import glint_evaluation


@pytest.mark.slow
def test_one_set_of_kernels_at_two_depths_says_the_same(tmp_path, monkeypatch):
    out = tmp_path / "report.json"
    arguments = ["--scenes", "1", "--device", "cpu", "--processes", "1", "--out", str(out)]
    assert glint_evaluation.main(arguments) == 0
    report = json.loads(out.read_text(encoding="utf-8"))
    assert report["same"] == report["questions"] > 10 and not report["beyond"]
    ours, reference = report["kernels"]["accounting"], report["torch"]["accounting"]
    assert ours[0]["overlapped"] > 0 == reference[0]["overlapped"]
    assert report["kernels"]["scores"] == report["torch"]["scores"]
    first, sides = glint_evaluation.sit, []

    def altered(vlm, papers):
        asked = first(vlm, papers)
        sides.append(asked)
        if len(sides) == 2:
            asked[0].heard.tokens[0].pop()
        return asked

    monkeypatch.setattr(glint_evaluation, "sit", altered)
    assert glint_evaluation.main(arguments) == 1
