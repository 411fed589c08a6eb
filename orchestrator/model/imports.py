"""The modules that a script needs from the environment of its ranks."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from orchestrator.errors import RequestError
from orchestrator.model.printable import one_line

HINT = (
    "Nothing was started. Your modules must be in the project and not be ignored; --project names another folder. "
    "Imports inside of try or a function are not checked. Packages: --with NAME, --requirements FILE, or these lines "
    "in the script:"
)
SAME_WORD = 0.8  # the similarity of names of which one is a misspelling
# Packages whose name on PyPI is not that of their module with dashes.
DISTRIBUTIONS = {
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "Crypto": "pycryptodome",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "fitz": "pymupdf",
    "git": "gitpython",
    "hydra": "hydra-core",
    "ignite": "pytorch-ignite",
    "mpl_toolkits": "matplotlib",
    "OpenSSL": "pyopenssl",
    "PIL": "pillow",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "umap": "umap-learn",
    "yaml": "pyyaml",
}


def similar_module(name: str, modules: Collection[str]) -> str:
    """Return the module of the project that is meant by a misspelled name, or ''."""
    for module in modules:
        if sorted(module) == sorted(name):  # exchanged letters
            return module
    return next(iter(difflib.get_close_matches(name, modules, n=1, cutoff=SAME_WORD)), "")


def script_block(modules: Collection[str]) -> str:
    """Return the lines for a script that add packages, by the names that their modules have on PyPI."""
    tops = dict.fromkeys(name.partition(".")[0] for name in modules)
    names = ", ".join(f'"{DISTRIBUTIONS.get(name, name.replace("_", "-"))}"' for name in tops)
    return f"# /// script\n# dependencies = [{names}]\n# ///"


@dataclass(frozen=True, slots=True, kw_only=True)
class Imports:
    """The modules that a script imports and that its project does not contain.

    Attributes:
        importers: the file that imports each module.
        source: the stack or the interpreter that should have them, such as `stack current`.
        project_modules: the modules next to the script.
    """

    importers: Mapping[str, str]
    source: str
    project_modules: tuple[str, ...] = ()

    def check(self, missing: Collection[str]) -> None:
        """Check that no module is missing; names that are not imported are ignored.

        Raises:
            RequestError: if one is missing.
        """
        modules: dict[str, list[str]] = {}
        for name, importer in self.importers.items():
            if name in missing:
                modules.setdefault(importer, []).append(name)
        if modules:
            files = "; ".join(f"{importer} imports {' and '.join(names)}" for importer, names in modules.items())
            names = [name for names in modules.values() for name in names]
            intended = [module for name in names if (module := similar_module(name, self.project_modules))]
            hint = f"Did you mean your module '{intended[0]}'?" if intended else f"{HINT}\n{script_block(names)}"
            raise RequestError(one_line(f"{files}, which {self.source} does not have."), hint=hint)
