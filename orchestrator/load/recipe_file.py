"""The keys of recipe.toml, and its JSON schema for editors."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from orch_node.protocol.environment import find_reserved
from pydantic import Field, StringConstraints, field_validator

from orchestrator.load.files import StrictModel
from orchestrator.model.recipe import Value

SCHEMA_URL = "https://json-schema.org/draft/2020-12/schema"

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class SettingFile(StrictModel):
    """A setting that the script's parser does not list."""

    type: Literal["integer", "number", "switch", "text"] = Field(description="A switch is true or false.")
    default: Value | None = Field(
        default=None, description="The value that the script gets unless a preset or the user changes it."
    )


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
    stacks: list[str] = Field(
        default_factory=list, description="The stacks it runs on: names, or patterns such as torch-2.*. Default: all."
    )
    paths: list[str] = Field(
        default_factory=list, description="Settings whose values are files; they are sent to the nodes."
    )
    excludes: dict[str, list[str]] = Field(
        default_factory=dict, description="For each setting, the names whose defaults it removes."
    )
    environment: dict[Name, str] = Field(
        default_factory=dict, description="Environment variables of the ranks, unless they are set elsewhere."
    )
    precisions: dict[Literal["bf16", "fp32"], list[str]] = Field(
        min_length=1,
        description="The script's arguments that select bf16 or fp32. With both, --precision auto chooses by "
        "the nodes' instructions; one is required.",
    )
    settings: dict[Name, Value | SettingFile] = Field(
        default_factory=dict,
        description="Values that the script gets by default, as --name=value, and settings that its parser does not "
        "list. Without a parser, their type is that of the value: 3 is a whole number, 3.0 a number, true a switch.",
    )
    presets: dict[str, dict[str, Value]] = Field(
        default_factory=dict, description="Named sets of settings for --preset."
    )

    @field_validator("environment")
    @classmethod
    def check_environment(cls, environment: dict[str, str]) -> dict[str, str]:
        """Return the variables; raise ValueError if orch sets one of them."""
        if reserved := find_reserved(environment):
            raise ValueError(f"{reserved[0]}: {reserved[1]}")
        return environment


def schema() -> dict[str, Any]:
    """Return the JSON schema of recipe.toml."""
    return {"$schema": SCHEMA_URL, **RecipeFile.model_json_schema(), "title": "recipe.toml of orch"}


def schema_text() -> str:
    return json.dumps(schema(), indent=2) + "\n"
