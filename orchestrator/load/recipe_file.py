"""The keys of recipe.toml, and its JSON schema for editors."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from orchestrator.load.files import StrictModel
from orchestrator.model.recipe import Value

SCHEMA_URL = "https://json-schema.org/draft/2020-12/schema"

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class TypesFile(StrictModel):
    """The types of settings whose default does not reveal them; all others are text."""

    integer: list[str] = Field(default_factory=list, description="A whole number.")
    number: list[str] = Field(default_factory=list, description="A number.")
    switch: list[str] = Field(default_factory=list, description="true or false.")
    text: list[str] = Field(default_factory=list, description="Anything.")

    def by_name(self) -> dict[str, str]:
        """Return the type of each name."""
        return {name: kind for kind, names in self for name in names}


class RecipeFile(StrictModel):
    """A training script, its defaults, and how they may be changed."""

    summary: str = Field(description="One line, shown by `orch recipes`.")
    script: str = Field(description="The training script, relative to this file.")
    resumes: bool = Field(default=False, description="The script resumes from the newest checkpoint in --output_dir.")
    elastic: bool = Field(
        default=False,
        description="With fewer ranks than ORCH_PLANNED_WORLD_SIZE, for example after a lost node, the script keeps "
        "its global batch, order of data and schedule.",
    )
    ipex: bool = Field(default=False, description="The script takes --use_ipex, which `--ipex` adds.")
    stacks: list[str] = Field(default_factory=list, description="The stacks it runs on. Default: all.")
    paths: list[str] = Field(
        default_factory=list, description="Settings whose values are files; they are sent to the nodes."
    )
    accepts: list[str] = Field(default_factory=list, description="Names that --set knows besides those of [arguments].")
    types: TypesFile = Field(
        default_factory=TypesFile,
        description="The types of settings whose default does not reveal them. A default of 3 or 0.5 means a "
        "number, true or false a switch.",
    )
    excludes: dict[str, list[str]] = Field(
        default_factory=dict, description="For each setting, the names whose defaults it removes."
    )
    environment: dict[Name, str] = Field(
        default_factory=dict, description="Environment variables of the ranks, unless they are set elsewhere."
    )
    precisions: dict[str, list[str]] = Field(
        description="The script's arguments that select bf16 or fp32. With both, --precision auto chooses by "
        "the nodes' instructions; one is required."
    )
    arguments: dict[str, Value] = Field(
        description="Default settings; each is passed as --name=value, true as the flag alone."
    )
    presets: dict[str, dict[str, Value]] = Field(
        default_factory=dict, description="Named sets of settings for --preset."
    )


def schema() -> dict[str, Any]:
    """Return the JSON schema of recipe.toml."""
    return {"$schema": SCHEMA_URL, **RecipeFile.model_json_schema(), "title": "recipe.toml of orch"}


def schema_text() -> str:
    return json.dumps(schema(), indent=2) + "\n"
