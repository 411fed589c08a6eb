"""Reads the settings that a recipe declares in dataclasses from their source, without importing it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from orchestrator.errors import RequestError
from orchestrator.model.recipe import Setting, Value
from orchestrator.model.setting_types import INTEGER, NUMBER, SWITCH, TEXT

KINDS = {"int": INTEGER, "float": NUMBER, "bool": SWITCH}
NO_VALUE = {"None", "Optional"}
NO_KINDS = NO_VALUE | {"Union", "typing"}
CLASS_VARIABLE = "ClassVar"
TRAINING_ARGUMENTS_CLASS, TRAINING_ARGUMENTS_HELP = "TrainingArguments", "As in transformers.TrainingArguments."

# The fields of TrainingArguments in all versions of transformers that the recipes support, 4.30 to 5.23.
TRAINING_ARGUMENTS = {
    INTEGER: """
data_seed dataloader_num_workers dataloader_prefetch_factor ddp_bucket_cap_mb ddp_timeout eval_accumulation_steps
fsdp_min_num_params gradient_accumulation_steps local_rank max_steps past_index per_device_eval_batch_size
per_device_train_batch_size per_gpu_eval_batch_size per_gpu_train_batch_size save_total_limit seed
torch_empty_cache_steps tpu_num_cores
""",
    NUMBER: """
adam_beta1 adam_beta2 adam_epsilon eval_delay eval_steps label_smoothing_factor learning_rate logging_steps
max_grad_norm neftune_noise_alpha num_train_epochs save_steps warmup_ratio warmup_steps weight_decay
""",
    SWITCH: """
activation_checkpointing adafactor auto_find_batch_size average_tokens_across_devices batch_eval_metrics bf16
bf16_full_eval dataloader_drop_last dataloader_in_order dataloader_persistent_workers dataloader_pin_memory
ddp_broadcast_buffers ddp_find_unused_parameters ddp_static_graph disable_tqdm dispatch_batches do_eval do_predict
do_train enable_jit_checkpoint eval_do_concat_batches eval_on_start eval_use_gather_object fp16 fp16_full_eval
full_determinism gradient_checkpointing greater_is_better group_by_length hub_always_push hub_private_repo
ignore_data_skip include_inputs_for_metrics include_tokens_per_second jit_mode_eval load_best_model_at_end
log_on_each_node logging_first_step logging_nan_inf_filter no_cuda overwrite_output_dir prediction_loss_only
push_to_hub remove_unused_columns restore_callback_states_from_checkpoint save_on_each_node save_only_model
save_safetensors skip_memory_metrics split_batches tf32 torch_compile tpu_metrics_debug use_cache use_cpu use_ipex
use_legacy_prediction_loop use_liger_kernel use_mps_device
""",
    TEXT: """
accelerator_config activation_checkpointing_kwargs dataloader_multiprocessing_context ddp_backend debug deepspeed
eval_strategy evaluation_strategy fp16_backend fp16_opt_level fsdp fsdp_config
fsdp_transformer_layer_cls_to_wrap gradient_checkpointing_kwargs half_precision_backend hub_model_id hub_revision
hub_strategy hub_token include_for_metrics include_num_input_tokens_seen label_names length_column_name
liger_kernel_config log_level log_level_replica logging_dir logging_strategy lr_scheduler_kwargs lr_scheduler_type
metric_for_best_model mp_parameters optim optim_args optim_target_modules output_dir parallelism_config project
push_to_hub_model_id push_to_hub_organization push_to_hub_token ray_scope report_to resume_from_checkpoint run_name
save_strategy sharded_ddp torch_compile_backend torch_compile_mode torchdynamo trackio_bucket_id trackio_space_id
trackio_static_space_id train_sampling_strategy xpu_backend
""",
}
# Those that may be None in one of these versions.
OPTIONAL_SWITCHES = (
    *("activation_checkpointing", "ddp_broadcast_buffers", "ddp_find_unused_parameters", "ddp_static_graph"),
    *("disable_tqdm", "dispatch_batches", "gradient_checkpointing", "greater_is_better", "hub_private_repo"),
    *("split_batches", "tf32"),
)


def dataclass_settings(script: Path, names: Sequence[str], folders: Sequence[Path]) -> dict[str, Setting]:
    """Return the fields of dataclasses and of the classes that they inherit from.

    Args:
        script: the recipe's script.
        names: each class as CLASS in the script, or as MODULE:CLASS.
        folders: where the script finds modules.

    Raises:
        RequestError: if a file cannot be parsed, or there is no such class.
    """
    sources, settings = Sources(folders), dict[str, Setting]()
    for name in names:
        module, _, class_name = name.rpartition(":")
        sources.visited.clear()
        fields = dict(sources.settings(sources.find(module) if module else script, class_name))
        if not fields:
            raise RequestError(
                f"{script.parent}/recipe.toml: dataclasses: there is no class '{name}' with fields.",
                hint=f'Name a class of {script.name}, or of a module that it imports as "MODULE:CLASS".',
            )
        settings |= fields
    return settings


class Sources:
    """The source files of a recipe.

    Attributes:
        folders: where the script finds modules.
        trees: the files that have been read, as lines and syntax tree.
        visited: the classes that have been looked up, by file and name; a base counts once.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders
        self.trees: dict[Path, tuple[list[bytes], ast.Module]] = {}
        self.visited: set[tuple[Path | None, str]] = set()

    def find(self, module: str) -> Path | None:
        """Return the file of a module of the recipe or of orch; None for other modules."""
        paths = (folder / f"{module.replace('.', '/')}.py" for folder in self.folders)
        return next((path for path in paths if path.is_file()), None)

    def parse(self, path: Path) -> tuple[list[bytes], ast.Module]:
        """Return the lines and the syntax tree of a file.

        Raises:
            RequestError: if it cannot be parsed.
        """
        if path not in self.trees:
            try:
                content = path.read_bytes()
                self.trees[path] = content.splitlines(), ast.parse(content)
            except (OSError, ValueError, SyntaxError) as error:
                reason = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else error
                raise RequestError(
                    f"{path}: {reason}.", hint="The file is read for the settings of the recipe. Nothing was started."
                ) from None
        return self.trees[path]

    def settings(self, path: Path | None, class_name: str) -> Iterator[tuple[str, Setting]]:
        """Yield the fields of a class in a file; those that it inherits first."""
        if (path, class_name) in self.visited:
            return
        self.visited.add((path, class_name))
        lines, tree = self.parse(path) if path else ([], ast.Module([], []))
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name == class_name:
                for base in reversed(node.bases):  # A field of the first base wins.
                    yield from self.settings(path, ast.unparse(base))
                yield from fields_of(node, lines)
                return
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    if class_name in (alias.name, alias.asname) and (module := self.find(node.module)):
                        yield from self.settings(module, alias.name)
                        return
        if class_name.endswith(TRAINING_ARGUMENTS_CLASS):
            for kind, names in TRAINING_ARGUMENTS.items():
                yield from ((name, training_argument(name, kind)) for name in names.split())


def training_argument(name: str, kind: str) -> Setting:
    return Setting(kind, description=TRAINING_ARGUMENTS_HELP, needs_value=name in OPTIONAL_SWITCHES)


def fields_of(node: ast.ClassDef, lines: Sequence[bytes]) -> Iterator[tuple[str, Setting]]:
    """Yield the fields that a class itself defines."""
    for field in node.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            annotation_names = {*re.findall(r"\w+", ast.unparse(field.annotation))}
            type_names = annotation_names - NO_KINDS
            options = field_options(field.value)
            default = options.get("default")
            if CLASS_VARIABLE not in type_names and options.get("init") is not False:
                comment = lines[(field.end_lineno or 1) - 1][field.end_col_offset :].decode().partition("#")[2]
                kind = KINDS.get(type_names.pop(), TEXT) if len(type_names) == 1 else TEXT
                yield (
                    field.target.id,
                    Setting(
                        kind,
                        default if isinstance(default, Value) else None,
                        str(options.get("help") or comment.strip()),
                        needs_value=kind == SWITCH and default is None and bool(annotation_names & NO_VALUE),
                        choices=literal_values(field.annotation),
                    ),
                )


def literal_values(annotation: ast.expr) -> tuple[str, ...]:
    """Return the values of a Literal in an annotation; empty if there is none."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("Literal"):
            values = literal(node.slice)
            return tuple(map(str, values if isinstance(values, tuple) else (values,)))
    return ()


def field_options(value: ast.expr | None) -> dict[str, Any]:
    """Return `default`, `init` and `help` of a field, as far as they are literals.

    A call is dataclasses.field(), or a function of the recipe that gets the default and the help.
    """
    if not isinstance(value, ast.Call):
        return {"default": literal(value)}
    positional = zip(("default", "help"), map(literal, value.args), strict=False)
    options = {**dict(positional), **{keyword.arg or "": literal(keyword.value) for keyword in value.keywords}}
    metadata = options.get("metadata")
    return options | (metadata if isinstance(metadata, dict) else {})


def literal(node: ast.expr | None) -> Any:
    """Return the value of a literal; None for other expressions."""
    try:
        return ast.literal_eval(node) if node else None
    except (ValueError, TypeError):
        return None
