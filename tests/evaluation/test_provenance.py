import subprocess

import mimonets
from mimonets.evaluation.provenance import _commit, environment


def test_the_environment_names_code_and_machine():
    found = environment()
    assert found["torch"].count("+") == 0
    assert found["threads"] >= 1
    assert found["cpu"]


def test_the_commit_of_a_repository_that_only_holds_the_package_is_not_ours(tmp_path, monkeypatch):
    def git(*words):
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    package = tmp_path / "site-packages" / "mimonets"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "of somebody else")
    monkeypatch.setattr(mimonets, "__file__", str(package / "__init__.py"))
    assert _commit.__wrapped__() is None
    git("add", ".")
    git("commit", "-q", "-m", "now it is theirs")
    assert len(_commit.__wrapped__()) == 12
