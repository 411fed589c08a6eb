"""Files of this machine as a pod finds them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from orchestrator.model.recipe import Recipe, Value
from orchestrator.targets.kubernetes.settings import KubeSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Where files of this machine are found in a pod."""

    paths: Mapping[str, str]
    contents: Mapping[str, bytes]
    train_here: str
    train: str

    @staticmethod
    def of(contents: Mapping[str, bytes], recipe: Recipe, train_here: str, settings: KubeSettings) -> Files:
        paths = {path: f"{settings.files}/files/{recipe.sent_path(path, index)}" for index, path in enumerate(contents)}
        return Files(paths=paths, contents=contents, train_here=train_here, train=f"{settings.root}/train")

    def there(self, path: str) -> str:
        """A file that came along, one of the image, or a path that is the pod's already."""
        if path in self.paths:
            return self.paths[path]
        inside = PurePosixPath(path)
        if inside.is_relative_to(self.train_here):
            return f"{self.train}/{inside.relative_to(self.train_here)}"
        return path

    def paths_of(self, recipe: Recipe, settings: Mapping[str, Value]) -> dict[str, str]:
        named = [str(settings[name]) for name in recipe.paths if name in settings]
        return {path: self.there(path) for path in (recipe.script, *named)}

    def carried(self, settings: KubeSettings) -> dict[str, bytes]:
        """Path below the mounted ConfigMap -> content."""
        return {
            str(PurePosixPath(self.paths[path]).relative_to(settings.files)): content
            for path, content in self.contents.items()
        }
