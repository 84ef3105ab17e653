"The project's own files agree with each other: version, requirements, modules, notebooks, README, workflows."
import shutil
import subprocess
import sys
from configparser import ConfigParser
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from nbdev.clean import nbdev_clean
from nbdev.doclinks import nbdev_export
from packaging.requirements import Requirement

import ptwrap

ROOT = Path(__file__).parents[1]


@pytest.fixture
def copy(tmp_path, monkeypatch):
    "A copy of the notebooks and the package, in which to export and clean."
    for name in ("nbs", "ptwrap"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for name in ("pyproject.toml", "settings.ini", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IN_TEST", raising=False)
    return tmp_path


def changed(copy: Path, pattern: str) -> list[str]:
    "Files of the copy that differ from the project's, or that the project lacks."
    paths = [p.relative_to(copy) for p in copy.glob(pattern) if p.is_file()]
    return [p.name for p in paths if not (ROOT / p).exists() or (ROOT / p).read_bytes() != (copy / p).read_bytes()]


def test_version():
    assert metadata.version("ptwrap") == ptwrap.__version__, "run make venv"
    assert f"## {ptwrap.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_requirements_are_those_of_settings_ini():
    ini = ConfigParser(delimiters=["="], interpolation=None)
    ini.read(ROOT / "settings.ini", encoding="utf-8")
    wanted = ini["DEFAULT"]["requirements"].split()
    for key, value in ini["DEFAULT"].items():
        extra = key.removesuffix("_requirements")
        wanted += [f'{req}; extra == "{extra}"' for req in value.split() if extra != key]
    installed = {str(Requirement(r)) for r in metadata.requires("ptwrap")}
    assert installed == {str(Requirement(r)) for r in wanted}, "settings.ini changed: run make venv"


def test_modules_are_what_the_notebooks_export(copy):
    nbdev_export()
    assert changed(copy, "ptwrap/**/*") == [], "run .venv/bin/nbdev-export"


def test_notebooks_are_clean(copy):
    nbdev_clean()
    assert changed(copy, "nbs/**/*.ipynb") == [], "run .venv/bin/nbdev-clean"


def test_readme_is_made_from_index(copy):
    subprocess.run([sys.executable, "nbs/_ext/nbstage.py", "readme"], check=True)
    assert changed(copy, "README.md") == [], "run make readme"


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda p: p.name)
def test_workflow_is_yaml_with_steps(path):
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    assert jobs and all(step.keys() & {"run", "uses"} for job in jobs.values() for step in job["steps"])


def test_hooks_download_nothing():
    repos = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert {repo["repo"] for repo in repos} == {"local"}
