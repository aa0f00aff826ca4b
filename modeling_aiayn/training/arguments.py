"""Training arguments: transformers' own, with the paper's values (section 5) as defaults."""

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import GenerationConfig, SchedulerType, Seq2SeqTrainingArguments
from transformers.hf_argparser import HfArg
from transformers.integrations import get_available_reporting_integrations

# The value of optim that transformers does not have.
MUON = "muon"
# transformers ignores optim_args for its own ones of these.
WITHOUT_OPTIM_ARGS = (MUON, "adamw_torch", "adamw_torch_fused", "adafactor")
# Schedules of transformers that follow the score of metric_for_best_model.
PLATEAU_SCHEDULES = ("reduce_lr_on_plateau", "greedy")
# Flags that are at least 1 where they are given.
COUNTS = (
    *("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"),
    *("pad_to_multiple_of", "generation_num_beams"),
)
# With noam, learning_rate multiplies equation 3; the paper has no such factor.
NOAM_FACTOR = 1.0


@dataclass
class RunArguments(Seq2SeqTrainingArguments):
    """Training arguments that all tasks share.

    The flags of transformers that configure generate() during evaluation cannot be set here:
    only translation uses them.

    Raises:
        ValueError: A value is invalid, two values contradict each other, or an option of
            transformers is set that our training does not support.
    """

    schedules: ClassVar[tuple[str, ...]] = tuple(schedule.value for schedule in SchedulerType)

    pad_to_multiple_of: int | None = HfArg(
        default=None, help="Pad each batch to a multiple of this many tokens."
    )
    adam_beta2: float = HfArg(default=0.98, help="Adam's beta2 (section 5.3).")
    adam_epsilon: float = HfArg(default=1e-9, help="Adam's epsilon (section 5.3).")
    optim: str = HfArg(
        default=Seq2SeqTrainingArguments.optim,
        help="An optimizer of transformers; or muon (Jordan et al. 2024): it updates the "
        "matrices of the layers, and Adam everything else.",
    )
    train_sampling_strategy: str = HfArg(
        default="group_by_length",
        help="group_by_length: each batch holds sentences of similar length.",
    )
    dataloader_pin_memory: bool = HfArg(
        default_factory=torch.accelerator.is_available,
        help="Keep batches in pinned memory. Default: if there is an accelerator.",
    )
    ddp_find_unused_parameters: bool | None = HfArg(
        default=False,
        help="Search for parameters without a gradient. Not needed: all have one.",
    )
    early_stopping_patience: int = HfArg(
        default=0,
        help="Stop after this many evaluations without a better score. 0: never.",
    )
    resume: str | None = HfArg(
        default=None,
        help="Resume from a checkpoint; 'auto': from the newest one in output_dir.",
    )
    ema_decay: float = HfArg(
        default=0.0,
        help="Evaluate and save an exponential moving average of the weights with this "
        "decay. 0: no average; 0.999 is usual.",
    )
    r_drop: float = HfArg(
        default=0.0,
        help="Compute each batch twice with different dropout masks, and add this weight "
        "times the divergence of both to the loss (R-Drop, Wu et al. 2021). 0: once; 5 is "
        "usual. A step takes two to three times as long.",
    )
    restore_callback_states_from_checkpoint: bool = HfArg(
        default=True,
        help="When resuming, restore the count of early_stopping_patience.",
    )
    push_to_hub: bool = HfArg(
        default=False,
        help="Not supported in training. Publish afterwards: aiayn push-to-hub.",
    )
    hub_token: str | None = HfArg(default=None, help="Not supported in training. See push_to_hub.")
    resume_from_checkpoint: str | None = HfArg(
        default=None, help="Not supported. Pass resume instead."
    )
    auto_find_batch_size: bool = HfArg(
        default=False,
        help="Not supported: a resumed run could get other batches.",
    )
    use_cache: bool = HfArg(
        default=True,
        help="Saved in the model's configuration; training itself uses no cache.",
    )
    logging_nan_inf_filter: bool = HfArg(
        default=False,
        help="Log the mean of earlier losses instead of one that is NaN or infinite.",
    )

    predict_with_generate: bool = field(default=False, init=False)
    generation_num_beams: int | None = field(default=None, init=False)
    generation_max_length: int | None = field(default=None, init=False)
    generation_config: str | Path | GenerationConfig | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._check_unsupported()
        self._check_numbers()
        self._check_patience()
        if (self.metric_for_best_model or "").endswith("perplexity"):
            self.greater_is_better = False  # transformers knows only names that end in "loss"
        if self.lr_scheduler_type not in self.schedules:
            raise ValueError(
                f"lr_scheduler_type must be one of {', '.join(self.schedules)}, "
                f"got {self.lr_scheduler_type!r}."
            )
        # transformers rejects names of optimizers that it does not know.
        is_muon = self.optim == MUON
        self.optim = Seq2SeqTrainingArguments.optim if is_muon else self.optim
        try:
            super().__post_init__()
        except TypeError as error:  # of a mapping with an unknown key
            raise ValueError(f"A training argument has an invalid value: {error}.") from error
        self.optim = MUON if is_muon else self.optim
        # accelerate launch --mixed_precision sets a variable, which transformers obeys.
        self.bf16 |= self.mixed_precision == "bf16"
        self.fp16 |= self.mixed_precision == "fp16"
        if self.lr_scheduler_type in PLATEAU_SCHEDULES:  # torch expects a loss
            given: Any = self.lr_scheduler_kwargs  # type: ignore[has-type]
            mode = "max" if self.greater_is_better else "min"
            self.lr_scheduler_kwargs = {"mode": mode} | (given or {})
        self._check_processes()
        self._check_reports()

    @property
    def order_seed(self) -> int:
        """Seed of the order of training examples."""
        return self.seed if self.data_seed is None else self.data_seed

    def _check_unsupported(self) -> None:
        if self.push_to_hub or self.hub_token is not None:
            raise ValueError(
                "push_to_hub and hub_token are not supported in training: transformers would "
                "upload the whole output folder, with training_args.bin and the token in it. "
                "Train first, then run: aiayn push-to-hub."
            )
        if self.resume_from_checkpoint is not None:
            raise ValueError(
                "resume_from_checkpoint is not supported. "
                f"Pass resume={self.resume_from_checkpoint!r} instead."
            )
        if self.optim in WITHOUT_OPTIM_ARGS and self.optim_args:
            raise ValueError(
                f"optim={str(self.optim)!r} has no optim_args, got {self.optim_args!r}. Adam's "
                "options are adam_beta1, adam_beta2 and adam_epsilon."
            )
        if self.label_names not in (None, ["labels"]):
            raise ValueError(
                f"label_names is not supported, got {self.label_names}: the labels of our models "
                "are always named labels. Leave it out."
            )
        if self.enable_jit_checkpoint:
            raise ValueError(
                "enable_jit_checkpoint is not supported: a run saves a checkpoint on SIGTERM "
                "anyway. Leave it out."
            )
        if self.auto_find_batch_size:
            raise ValueError(
                "auto_find_batch_size is not supported: a resumed run could get other batches. "
                "Pass a batch size that fits into memory. If it does not fit, training stops and "
                "prints the size of the batch."
            )

    def _check_numbers(self) -> None:
        for name in COUNTS:
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}.")
        if self.generation_max_length is not None and self.generation_max_length < 2:
            raise ValueError(
                "generation_max_length must be at least 2, a token and the start token, got "
                f"{self.generation_max_length}."
            )
        if self.max_steps == 0 or (self.max_steps < 0 and self.num_train_epochs <= 0):
            raise ValueError(
                "A run needs at least one update: max_steps or num_train_epochs must be greater "
                f"than 0, got {self.max_steps} and {self.num_train_epochs}."
            )
        if not 0 <= self.label_smoothing_factor <= 1:
            raise ValueError(
                f"label_smoothing_factor must be in [0, 1], got {self.label_smoothing_factor}."
            )
        if not 0 <= self.ema_decay < 1:
            raise ValueError(f"ema_decay must be in [0, 1), got {self.ema_decay}.")
        if not 0 <= self.r_drop < math.inf:
            raise ValueError(f"r_drop must be a number of at least 0, got {self.r_drop}.")

    def _check_patience(self) -> None:
        if self.early_stopping_patience < 0:
            raise ValueError(
                f"early_stopping_patience must be at least 0, got {self.early_stopping_patience}."
            )
        has_metric = self.load_best_model_at_end or self.metric_for_best_model
        if self.early_stopping_patience and not has_metric:
            raise ValueError(
                "early_stopping_patience needs load_best_model_at_end or metric_for_best_model: it "
                "counts evaluations without a better score."
            )
        if self.early_stopping_patience and self.eval_strategy == "no":
            raise ValueError("early_stopping_patience needs an eval_strategy, got 'no'.")

    def _check_processes(self) -> None:
        launched = int(os.environ.get("WORLD_SIZE", 1))
        if launched > 1 and self.world_size == 1:
            raise ValueError(
                f"{launched} processes were launched, but accelerate found no accelerators to "
                "connect them: each would train alone. To train on CPUs, pass --use_cpu true."
            )

    def _check_reports(self) -> None:
        installed = get_available_reporting_integrations()
        missing = sorted({*self.report_to} - {*installed, "flyte"})  # flyte is not in that list
        if missing:
            raise ValueError(
                f"report_to names packages that are not installed: {', '.join(missing)}. Install "
                "them (modeling_aiayn[tensorboard] for tensorboard), or leave report_to out."
            )


@dataclass
class AiaynTrainingArguments(RunArguments):
    """Training arguments of translation.

    Raises:
        ValueError: As for RunArguments; or noam is given arguments of another schedule,
            another schedule lacks a learning rate, or the batch size is given in two ways.

    Departs from the paper: without max_tokens_per_batch, batches hold a fixed number of sentences;
    with it, one limit holds for source plus target tokens. The paper has about 25,000 of each.
    """

    schedules: ClassVar[tuple[str, ...]] = ("noam", *RunArguments.schedules)

    max_tokens_per_batch: int | None = HfArg(
        default=None,
        help="Maximum tokens in a batch: source plus target, including padding (section "
        "5.1). Replaces per_device_train_batch_size.",
    )
    lr_scheduler_type: str = HfArg(
        default="noam",
        help="noam (equation 3) or a schedule of transformers.",
    )
    learning_rate: float = HfArg(
        default=NOAM_FACTOR,
        help="With noam a factor on equation 3, else the peak learning rate.",
    )
    warmup_steps: float = HfArg(default=4000, help="Updates over which the learning rate rises.")
    max_grad_norm: float = HfArg(
        default=0.0,
        help="Clip gradients to this norm. 0: do not clip, as in the paper.",
    )
    label_smoothing_factor: float = HfArg(
        default=0.1, help="Label smoothing (section 5.4); padding is ignored."
    )
    predict_with_generate: bool = HfArg(
        default=True, help="Translate during evaluation, to compute BLEU."
    )
    generation_num_beams: int | None = HfArg(
        default=1, help="Beam size during evaluation. 1: greedy, the fastest."
    )
    generation_max_length: int | None = HfArg(
        default=None, help="Maximum tokens of a translation during evaluation."
    )
    generation_config: str | Path | GenerationConfig | None = HfArg(
        default=None, help="Generation settings during evaluation."
    )

    def __post_init__(self) -> None:
        self._check_batch_size()
        is_noam = self.lr_scheduler_type == "noam"
        if is_noam and self.lr_scheduler_kwargs:
            raise ValueError(f"noam has no lr_scheduler_kwargs, got {self.lr_scheduler_kwargs!r}.")
        if self.lr_scheduler_type in RunArguments.schedules and self.learning_rate == NOAM_FACTOR:
            raise ValueError(
                f"lr_scheduler_type={self.lr_scheduler_type!r} needs a learning_rate; the default "
                f"{NOAM_FACTOR} is meant for noam."
            )
        # transformers rejects names of schedules that it does not know.
        self.lr_scheduler_type = "constant" if is_noam else self.lr_scheduler_type
        super().__post_init__()
        self.lr_scheduler_type = "noam" if is_noam else self.lr_scheduler_type

    def _check_batch_size(self) -> None:
        tokens, sentences = self.max_tokens_per_batch, self.per_device_train_batch_size
        if tokens is None:
            return
        strategy = self.train_sampling_strategy
        if strategy != type(self).train_sampling_strategy:
            raise ValueError(
                "max_tokens_per_batch has an order of its own: batches of similar length, drawn at "
                f"random. Leave train_sampling_strategy={strategy!r} out, or give "
                "per_device_train_batch_size instead."
            )
        if tokens < 1:
            raise ValueError(f"max_tokens_per_batch must be at least 1, got {tokens}.")
        if sentences != type(self).per_device_train_batch_size:
            raise ValueError(
                "Give the batch size as max_tokens_per_batch or as per_device_train_batch_size, "
                f"got {tokens} and {sentences}."
            )
