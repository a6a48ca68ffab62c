from mimonets.evaluation.provenance import environment


def test_the_environment_names_code_and_machine():
    found = environment()
    assert found["torch"].count("+") == 0
    assert found["threads"] >= 1
    assert found["cpu"]
