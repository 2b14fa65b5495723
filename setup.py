"""Maps the top-level rooms to packages `uaii.<room>`; everything else is in pyproject.toml."""
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
ROOMS = ("frontend", "ir", "passes", "backends", "cli")

package_dir = {"uaii": "uaii"}
for room in ROOMS:
    for init in sorted((ROOT / room).rglob("__init__.py")):
        folder = init.parent.relative_to(ROOT)
        package_dir["uaii." + ".".join(folder.parts)] = str(folder)

setup(packages=list(package_dir), package_dir=package_dir,
      package_data={"uaii": ["py.typed"], "uaii.frontend.tokenizer": ["*.json"]})
