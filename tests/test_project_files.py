"""The project's metadata is true: dependencies, versions, CI, hooks."""

import ast
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from vidcurate import __version__

ROOT = Path(__file__).resolve().parents[1]
# Distributions whose import name is another, and those that only another package of the extra imports.
IMPORTED_AS = {
    "beautifulsoup4": "bs4",
    "faiss-cpu": "faiss",
    "flash-attn-4": "flash_attn",
    "google-crc32c": "google_crc32c",
    "huggingface-hub": "huggingface_hub",
    "nvidia-ml-py": "pynvml",
    "opencv-python-headless": "cv2",
    "pillow": "PIL",
    "pyyaml": "yaml",
}
INDIRECT = {"protobuf", "sentencepiece"}  # transformers reads T5's tokenizer with them
# torch installs triton where there are GPUs.
COMES_WITH = {"triton": "torch"}


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def distributions(requirements: list[str]) -> set[str]:
    return {re.match(r"[\w-]+", text)[0].lower() for text in requirements}  # type: ignore[index]


def sources(*folders: str) -> list[str]:
    return [
        path.read_text(encoding="utf-8")
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]


def imported(texts: list[str]) -> set[str]:
    """Return the top-level packages that the sources import, at their top or inside a function."""
    found = set()
    for node in (node for text in texts for node in ast.walk(ast.parse(text))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_every_import_of_the_product_is_a_declared_dependency(project: dict[str, Any]) -> None:
    extras = project["optional-dependencies"]
    declared = distributions(project["dependencies"])
    declared |= {
        name for extra in extras if extra not in ("dev", "bench") for name in distributions(extras[extra])
    }
    names = {IMPORTED_AS.get(name, name) for name in declared} | {"vidcurate", "trainer"} | {*COMES_WITH}
    others = imported(sources("vidcurate", "trainer")) - {*sys.stdlib_module_names}
    assert others - names == set()


def test_every_dependency_is_used_by_the_product(project: dict[str, Any]) -> None:
    texts = sources("vidcurate", "trainer")
    base = distributions(project["dependencies"])
    assert {IMPORTED_AS.get(name, name) for name in base} - imported(texts) == set()
    extras = project["optional-dependencies"]
    named = "\n".join(texts)
    for extra in extras:
        if extra not in ("dev", "bench"):
            for name in distributions(extras[extra]) - INDIRECT:
                assert re.search(rf"\b{IMPORTED_AS.get(name, name)}\b", named), f"{extra}: {name}"
                assert name not in base, f"{extra} repeats {name}"


def test_every_dependency_is_pinned(project: dict[str, Any]) -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower().replace("_", "-").splitlines()
    pinned = {line.partition("==")[0] for line in pins}
    extras = [extra for name, extra in project["optional-dependencies"].items() if name != "ray"]
    wanted = distributions([*project["dependencies"], *(text for extra in extras for text in extra)])
    assert wanted - {"vidcurate"} - pinned == set()


def test_the_constraints_allow_the_cuda_build_of_torch() -> None:
    """pip gives most machines the CUDA build, which asks for one triton; the CPU build asks for none."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.M))
    asked_for = {"2.13.0": "3.7.1"}  # Requires-Dist in the METADATA of torch's wheel on PyPI
    assert pins["triton"] == asked_for[pins["torch"]]


def test_the_version_is_one() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)


def test_ci_runs_what_a_person_runs() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    (job,) = workflow["jobs"].values()
    assert job["steps"][-1] == {"run": ".ci/run"}
    commands = (ROOT / ".ci" / "run").read_text(encoding="utf-8").split("\n")
    assert {"make check", "JOBS=1 make test", "JOBS=1 make test-engines", "export CI=true"} <= {*commands}


def test_the_hooks_run_programs_of_the_extra_dev(project: dict[str, Any]) -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    developed = distributions(project["optional-dependencies"]["dev"])
    for hook in config["repos"][0]["hooks"]:
        assert Path(hook["entry"].split()[0]).name in developed


def test_the_files_named_in_contributing_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for name in re.findall(r"\]\(([^)#]+)[^)]*\)|`((?:\.ci|docs|tests|vidcurate)/[\w./]+)`", text):
        assert (ROOT / (name[0] or name[1])).exists(), name
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert {*re.findall(r"\bmake (\w+)", text)} <= {*targets}
