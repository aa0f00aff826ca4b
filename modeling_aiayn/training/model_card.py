"""The card of a trained model: what it is, how it was made, how well it translates."""

from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData


def fill_model_card(
    template: str | Path, scores: dict[str, Any], facts: dict[str, Any]
) -> ModelCard:
    """Fill the template with a run's facts and scores.

    Args:
        template: The template, Jinja.
        scores: A metric's name to its value; name_signature beside it where there is one.
        facts: What else the template names: source_lang, target_lang, model_name, dataset, ...

    Returns:
        The card, with metadata that the Hub reads.
    """
    results = [
        EvalResult(
            task_type="translation",
            dataset_type=str(facts["dataset"]),
            dataset_name=str(facts["dataset"]),
            metric_type=name,
            metric_value=round(value, 2),
        )
        for name, value in scores.items()
        if isinstance(value, float)
    ]
    data = ModelCardData(
        language=[facts["source_lang"], facts["target_lang"]],
        license="apache-2.0",
        library_name="transformers",
        pipeline_tag="translation",
        tags=["aiayn", "attention-is-all-you-need"],
        metrics=["sacrebleu", "chrf"],
        model_name=str(facts["model_name"]),
        eval_results=results or None,
    )
    return ModelCard.from_template(data, template_path=str(template), scores=scores, **facts)
