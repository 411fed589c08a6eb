"""Parse the command line: bert-qa's, and optimum-intel's quantization flags of run_qa."""

from __future__ import annotations

from dataclasses import dataclass

from config import Config, parse_arguments
from orch_training.arguments import check_requirements, option


@dataclass
class QuantArguments:
    """The arguments of the quantization."""

    apply_quantization: bool = option(True, "Quantize the model after training.")
    quantization_approach: str = option("static", "static or dynamic.")
    num_calibration_samples: int = option(50, "Windows for the calibration of a static quantization.")
    verify_loading: bool = option(False, "Load the model in a fresh process and compare the logits.")
    verify_tolerance: float = option(1e-4, "Maximum difference of a logit.")


def parse_quant_arguments(argv: list[str]) -> tuple[Config, QuantArguments]:
    """Parse the arguments of bert-qa and of the quantization.

    Raises:
        ArgumentError: if an argument is unknown or invalid.
    """
    config = parse_arguments(argv, further=(QuantArguments,))
    (quant,) = config.further
    check_requirements(
        [
            (
                quant.quantization_approach not in ("static", "dynamic"),
                "--quantization_approach must be static or dynamic; aware_training is not offered.",
            ),
            (quant.num_calibration_samples < 1, "--num_calibration_samples must be at least 1."),
            (quant.verify_tolerance <= 0, "--verify_tolerance must be over 0."),
            (quant.apply_quantization and not (config.training.do_eval), "--apply_quantization needs --do_eval."),
        ]
    )
    return config, quant
