"""The arguments that the scripts of orch's own recipes take, read from their source without importing it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import RequestError, did_you_mean
from orchestrator.model.recipe import Recipe
from orchestrator.paths import RECIPES, TRAIN

# The fields of TrainingArguments in all versions of transformers that the recipes support, 4.30 to 5.23.
TRAINING_ARGUMENTS = """
accelerator_config activation_checkpointing activation_checkpointing_kwargs adafactor adam_beta1 adam_beta2
adam_epsilon auto_find_batch_size average_tokens_across_devices batch_eval_metrics bf16 bf16_full_eval data_seed
dataloader_drop_last dataloader_in_order dataloader_multiprocessing_context dataloader_num_workers
dataloader_persistent_workers dataloader_pin_memory dataloader_prefetch_factor ddp_backend ddp_broadcast_buffers
ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph ddp_timeout debug deepspeed disable_tqdm
dispatch_batches do_eval do_predict do_train enable_jit_checkpoint eval_accumulation_steps eval_delay
eval_do_concat_batches eval_on_start eval_steps eval_strategy eval_use_gather_object evaluation_strategy fp16
fp16_backend fp16_full_eval fp16_opt_level fsdp fsdp_config fsdp_min_num_params
fsdp_transformer_layer_cls_to_wrap full_determinism gradient_accumulation_steps gradient_checkpointing
gradient_checkpointing_kwargs greater_is_better group_by_length half_precision_backend hub_always_push
hub_model_id hub_private_repo hub_revision hub_strategy hub_token ignore_data_skip include_for_metrics
include_inputs_for_metrics include_num_input_tokens_seen include_tokens_per_second jit_mode_eval label_names
label_smoothing_factor learning_rate length_column_name liger_kernel_config load_best_model_at_end local_rank
log_level log_level_replica log_on_each_node logging_dir logging_first_step logging_nan_inf_filter logging_steps
logging_strategy lr_scheduler_kwargs lr_scheduler_type max_grad_norm max_steps metric_for_best_model
mp_parameters neftune_noise_alpha no_cuda num_train_epochs optim optim_args optim_target_modules output_dir
overwrite_output_dir parallelism_config past_index per_device_eval_batch_size per_device_train_batch_size
per_gpu_eval_batch_size per_gpu_train_batch_size prediction_loss_only project push_to_hub push_to_hub_model_id
push_to_hub_organization push_to_hub_token ray_scope remove_unused_columns report_to
restore_callback_states_from_checkpoint resume_from_checkpoint run_name save_on_each_node save_only_model
save_safetensors save_steps save_strategy save_total_limit seed sharded_ddp skip_memory_metrics split_batches
tf32 torch_compile torch_compile_backend torch_compile_mode torch_empty_cache_steps torchdynamo
tpu_metrics_debug tpu_num_cores trackio_bucket_id trackio_space_id trackio_static_space_id
train_sampling_strategy use_cache use_cpu use_ipex use_legacy_prediction_loop use_liger_kernel use_mps_device
warmup_ratio warmup_steps weight_decay xpu_backend
"""


def check_script_arguments(recipe: Recipe, arguments: Sequence[str]) -> None:
    """Check that the script of one of orch's own recipes knows all options that it gets.

    Other scripts may read their options in any way.

    Raises:
        RequestError: for the first option that it does not know.
    """
    options = [word.partition("=")[0] for word in arguments if word.startswith("--") and word != "--"]
    script = Path(recipe.script)
    if not options or recipe.own_script or script.parent.parent != RECIPES:
        return
    names = field_names(script)
    for option in options:
        name = option[2:].replace("-", "_")
        # argparse also accepts the beginning of a name, and transformers adds --no_NAME for switches.
        if not any(argument.startswith((name, name.removeprefix("no_"))) for argument in names):
            listing = f"{script.parent / 'recipe.toml'} lists its settings."
            raise RequestError(
                f"The script of recipe '{recipe.name}' knows no argument '{option}'.",
                hint=did_you_mean(name, names, listing=listing),
            )


def field_names(script: Path) -> set[str]:
    """Return the fields of the dataclasses in a recipe's script and in the modules of orch that it imports.

    Dataclasses with options, such as frozen ones, are none that transformers parses.
    """
    folders = [script.parent, *sorted(RECIPES.iterdir()), TRAIN / "lib"]
    pending, names = [script], set[str]()
    visited = {script}
    while pending:
        tree = ast.parse(pending.pop().read_bytes())
        modules: list[str] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                modules += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                modules += [alias.name for alias in node.names]
            elif isinstance(node, ast.ClassDef) and any(
                is_named(decorator, "dataclass") for decorator in node.decorator_list
            ):
                fields = (part.target for part in node.body if isinstance(part, ast.AnnAssign))
                names |= {field.id for field in fields if isinstance(field, ast.Name)}
                if any(is_named(base, "TrainingArguments") for base in node.bases):
                    names |= {*TRAINING_ARGUMENTS.split()}
        for module in modules:
            paths = (folder / f"{module.replace('.', '/')}.py" for folder in folders)
            path = next((path for path in paths if path.is_file()), None)
            if path and path not in visited:
                visited.add(path)
                pending.append(path)
    return names


def is_named(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
