"""Training arguments: transformers' own, with the paper's values (section 5) as defaults."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, Seq2SeqTrainingArguments
from transformers.hf_argparser import HfArg

# A value of optim that transformers does not have.
MUON = "muon"
# Schedules of transformers that follow the score of metric_for_best_model.
PLATEAU_SCHEDULES = ("reduce_lr_on_plateau", "greedy")
# With noam, learning_rate multiplies equation 3; the paper has no such factor.
NOAM_FACTOR = 1.0


@dataclass
class RunArguments(Seq2SeqTrainingArguments):
    """Training arguments that all tasks share.

    The flags of transformers that configure generate() during evaluation cannot be set here:
    only translation uses them.

    Raises:
        ValueError: A value is invalid, an option is not supported, or several launched processes
            are not connected.
    """

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
        default=False, help="Search for parameters without a gradient. Not needed: all have one."
    )
    early_stopping_patience: int = HfArg(
        default=0, help="Stop after this many evaluations without a better score. 0: never."
    )
    resume: str | None = HfArg(
        default=None, help="Resume from a checkpoint; 'auto': from the newest one in output_dir."
    )
    allow_inexact_resume: bool = HfArg(
        default=False,
        help="Resume although the training data is a stream, of which a run that is resumed "
        "leaves out or repeats some pairs.",
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
        default=True, help="When resuming, restore the count of early_stopping_patience."
    )
    push_to_hub: bool = HfArg(
        default=False, help="Not supported in training. Publish afterwards: aiayn push-to-hub."
    )
    hub_token: str | None = HfArg(default=None, help="Not supported in training. See push_to_hub.")
    resume_from_checkpoint: str | None = HfArg(
        default=None, help="Not supported. Pass resume instead."
    )
    use_cache: bool = HfArg(
        default=True, help="Saved in the model's configuration; training itself uses no cache."
    )
    logging_nan_inf_filter: bool = HfArg(
        default=False, help="Log the mean of earlier losses instead of one that is NaN or infinite."
    )

    predict_with_generate: bool = field(default=False, init=False)
    generation_num_beams: int | None = field(default=None, init=False)
    generation_max_length: int | None = field(default=None, init=False)
    generation_config: str | Path | GenerationConfig | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._check_unsupported()
        if self.ema_decay >= 1:
            raise ValueError(
                f"ema_decay must be below 1, got {self.ema_decay}: with 1 nothing is learnt."
            )
        if (self.metric_for_best_model or "").endswith("perplexity"):
            self.greater_is_better = False  # transformers knows only names that end in "loss"
        # transformers rejects names of optimizers that it does not know.
        is_muon = self.optim == MUON
        self.optim = Seq2SeqTrainingArguments.optim if is_muon else self.optim
        super().__post_init__()
        self.optim = MUON if is_muon else self.optim
        # accelerate launch --mixed_precision sets an environment variable that transformers reads.
        self.bf16 |= self.mixed_precision == "bf16"
        self.fp16 |= self.mixed_precision == "fp16"
        if self.lr_scheduler_type in PLATEAU_SCHEDULES:  # torch's default is "min"
            given: Any = self.lr_scheduler_kwargs  # type: ignore[has-type]
            mode = "max" if self.greater_is_better else "min"
            self.lr_scheduler_kwargs = {"mode": mode} | (given or {})
        self._check_processes()

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

    def _check_processes(self) -> None:
        launched = int(os.environ.get("WORLD_SIZE", 1))
        if launched > 1 and self.world_size == 1:
            raise ValueError(
                f"{launched} processes were launched, but accelerate found no accelerators to "
                "connect them: each would train alone. To train on CPUs, pass --use_cpu true."
            )


@dataclass
class AiaynTrainingArguments(RunArguments):
    """Training arguments of translation.

    Raises:
        ValueError: As in RunArguments; or a schedule other than noam lacks a learning rate, or
            the batch size is given in two ways.

    Departs from the paper: without max_tokens_per_batch, batches hold a fixed number of sentences;
    with it, source plus target tokens have one limit. The paper has about 25,000 of each.
    """

    max_tokens_per_batch: int | None = HfArg(
        default=None,
        help="Maximum tokens in a batch: source plus target, including padding (section "
        "5.1). Replaces per_device_train_batch_size.",
    )
    lr_scheduler_type: str = HfArg(
        default="noam", help="noam (equation 3) or a schedule of transformers."
    )
    learning_rate: float = HfArg(
        default=NOAM_FACTOR, help="With noam a factor on equation 3, else the peak learning rate."
    )
    warmup_steps: float = HfArg(default=4000, help="Updates over which the learning rate rises.")
    max_grad_norm: float = HfArg(
        default=0.0, help="Clip gradients to this norm. 0: do not clip, as in the paper."
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
        tokens, sentences = self.max_tokens_per_batch, self.per_device_train_batch_size
        if tokens is not None and sentences != type(self).per_device_train_batch_size:
            raise ValueError(
                "Give the batch size as max_tokens_per_batch or as per_device_train_batch_size, "
                f"got {tokens} and {sentences}."
            )
        is_noam = self.lr_scheduler_type == "noam"
        if not is_noam and self.learning_rate == NOAM_FACTOR:
            raise ValueError(
                f"lr_scheduler_type={self.lr_scheduler_type!r} needs a learning_rate; the default "
                f"{NOAM_FACTOR} is meant for noam."
            )
        # transformers rejects names of schedules that it does not know.
        self.lr_scheduler_type = "constant" if is_noam else self.lr_scheduler_type
        super().__post_init__()
        self.lr_scheduler_type = "noam" if is_noam else self.lr_scheduler_type
