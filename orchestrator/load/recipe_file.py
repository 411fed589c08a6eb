"""recipe.toml: its keys, and the JSON schema by which editors check and complete them."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from orchestrator.load.files import StrictModel
from orchestrator.model.recipe import Value

SCHEMA_URL = "https://json-schema.org/draft/2020-12/schema"

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class TypesFile(StrictModel):
    """What --set takes for a name, where its default does not tell. All others are texts."""

    integer: list[str] = Field(default_factory=list, description="A whole number.")
    number: list[str] = Field(default_factory=list, description="A number.")
    switch: list[str] = Field(default_factory=list, description="true or false.")
    text: list[str] = Field(default_factory=list, description="Anything.")

    def of_names(self) -> dict[str, str]:
        """name -> its type."""
        return {name: kind for kind, names in self for name in names}


class RecipeFile(StrictModel):
    """What can be trained: a script, its defaults, and how they may be changed."""

    summary: str = Field(description="One line, shown by `orch recipes`.")
    script: str = Field(description="The training script, relative to this file.")
    resumes: bool = Field(default=False, description="The script goes on from the newest checkpoint in --output_dir.")
    elastic: bool = Field(
        default=False,
        description="With fewer ranks than ORCH_PLANNED_WORLD_SIZE, as after a lost node, it keeps "
        "its global batch, its order of data and its schedule.",
    )
    ipex: bool = Field(default=False, description="The script takes --use_ipex, which `--ipex` adds.")
    stacks: list[str] = Field(default_factory=list, description="The stacks it runs on; none: all of them.")
    paths: list[str] = Field(
        default_factory=list, description="Settings whose values are files; they are sent to the nodes."
    )
    accepts: list[str] = Field(default_factory=list, description="Names that --set knows besides those of [arguments].")
    types: TypesFile = Field(
        default_factory=TypesFile,
        description="What --set takes for a name, where its default does not tell: a number for 3 "
        "or 0.5, true or false for those.",
    )
    excludes: dict[str, list[str]] = Field(
        default_factory=dict, description="A name that is set -> names whose defaults it drops."
    )
    environment: dict[Name, str] = Field(
        default_factory=dict, description="Variables of its ranks, where nobody has set them otherwise."
    )
    precisions: dict[str, list[str]] = Field(
        description="bf16, fp32 -> the script's arguments that select it. With both, --precision "
        "auto chooses by the nodes; a single one is required."
    )
    arguments: dict[str, Value] = Field(
        description="Defaults; each becomes --name=value for the script, true the flag alone."
    )
    presets: dict[str, dict[str, Value]] = Field(
        default_factory=dict, description="Named sets of settings for --preset."
    )


def schema() -> dict[str, Any]:
    """The JSON schema of recipe.toml."""
    made = RecipeFile.model_json_schema()
    return {"$schema": SCHEMA_URL, **made, "title": "recipe.toml of orch"}


def schema_text() -> str:
    return json.dumps(schema(), indent=2) + "\n"
