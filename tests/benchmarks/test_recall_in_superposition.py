"""The extents of superposition still attend: measured on recall without training."""

import pytest

from benchmark_files import load_benchmark


@pytest.fixture(scope="module")
def accuracy():
    module = load_benchmark("recall_in_superposition")
    return lambda *arguments: module.accuracy(*arguments, groups=40)


@pytest.mark.parametrize("extent", ["attention", "attention+mlp", "attention+mlp+qkv"])
def test_alone_in_its_pass_every_extent_recalls(accuracy, extent):
    assert accuracy(extent, 128, 128, 1) >= 0.95


def test_in_superposition_attention_recalls_given_a_large_head(accuracy):
    assert accuracy("attention", 256, 1024, 2) > 0.85
    assert accuracy("attention", 64, 64, 2) < 0.6


def test_superposed_projections_attend_but_only_the_embedding_size_helps_them(accuracy):
    small, large = (accuracy("attention+mlp+qkv", dim, dim, 2) for dim in (64, 512))
    assert large > small + 0.2
    assert large > 0.6  # chance is 1/16
    wide_head = accuracy("attention+mlp+qkv", 64, 512, 2)
    assert abs(wide_head - small) < 0.12  # the head's size is not where its noise lives
