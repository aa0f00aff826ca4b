"""Use saved folders with transformers alone: `python contract.py WORK_FOLDER FOLDER...`.

Needs torch, transformers and accelerate. Prints one JSON object: for each folder, the result of
each check, which is "ok", "-" if the head has no such thing, or an error message.
"""

import json
import sys
import traceback
from pathlib import Path

import torch
import transformers

CHECKS = ("load", "logits", "ids", "train", "save")
TOLERANCE = 1e-5


def load(folder: Path, auto_class: str) -> torch.nn.Module:
    """Load a folder by its Auto class, with the code in the folder."""
    cls = getattr(transformers, auto_class)
    model, info = cls.from_pretrained(folder, trust_remote_code=True, output_loading_info=True)
    if info["missing_keys"] or info["unexpected_keys"]:
        raise ValueError(f"keys do not fit: {info}")
    return model.eval()


def load_heads(folder: Path, case: dict) -> torch.nn.Module:
    """Load the model, and what else the folder's weights make: a language model of the decoder."""
    if "language model" in case["expected"]:
        expected = torch.tensor(case["expected"]["language model"])
        writer = load(folder, "AutoModelForCausalLM")
        check_output(writer, {"input_ids": torch.tensor(case["batch"]["input_ids"])}, expected)
    return load(folder, case["auto_class"])


def output_of(model: torch.nn.Module, inputs: dict) -> torch.Tensor:
    """Logits, or the last hidden states of a model without a head."""
    with torch.no_grad():
        outputs = model(**inputs)
    return outputs.logits if "logits" in outputs else outputs[0]


def check_output(model: torch.nn.Module, inputs: dict, expected: torch.Tensor) -> None:
    difference = (output_of(model, inputs) - expected).abs().max().item()
    if not difference <= TOLERANCE:
        raise ValueError(f"outputs differ by {difference:.2g}")


def check_ids(model: torch.nn.Module, case: dict) -> None:
    prompt = {name: torch.tensor(value) for name, value in case["prompt"].items()}
    for name, beams in (("greedy", 1), ("beam 4", 4)):
        ids = model.generate(**prompt, num_beams=beams, max_new_tokens=9).tolist()
        if ids != case["expected"][name]:
            raise ValueError(f"{name} gave {ids}, not {case['expected'][name]}")
    steps = {"max_new_tokens": 9, "return_dict_in_generate": True, "output_logits": True}
    logits = torch.stack(model.generate(**prompt, num_beams=1, **steps).logits)
    difference = (logits - torch.tensor(case["expected"]["steps"])).abs().max().item()
    if not difference <= TOLERANCE:
        raise ValueError(f"the logits of steps differ by {difference:.2g}")


def train(model: torch.nn.Module, case: dict, folder: Path) -> None:
    """Train one step with the library's trainer, save, and load what it saved."""
    from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

    columns = case["batch"]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    arguments = Seq2SeqTrainingArguments(
        str(folder), max_steps=1, per_device_train_batch_size=len(rows), learning_rate=0.1,
        optim="sgd", report_to="none", save_strategy="no", logging_steps=1, disable_tqdm=True,
        use_cpu=True,
    )  # fmt: skip
    collate = transformers.default_data_collator
    trainer = Seq2SeqTrainer(model, arguments, train_dataset=rows, data_collator=collate)
    inputs = collate(rows)
    before = output_of(model, inputs)
    loss = trainer.train().training_loss
    if abs(loss - case["expected"]["loss"]) > TOLERANCE:
        raise ValueError(f"the loss is {loss}, not {case['expected']['loss']}")
    after = output_of(model.eval(), inputs)
    if torch.equal(before, after):
        raise ValueError("the step changed no output")
    trainer.save_model()
    check_output(load(folder, case["auto_class"]), inputs, after)


def save(model: torch.nn.Module, case: dict, folder: Path, original: Path) -> None:
    """Save, compare the files of code, and load again."""
    model.save_pretrained(folder)
    for path in original.glob("*.py"):
        if (folder / path.name).read_bytes() != path.read_bytes():
            raise ValueError(f"{path.name} was not copied")
    inputs = {name: torch.tensor(value) for name, value in case["batch"].items()}
    check_output(load(folder, case["auto_class"]), inputs, output_of(model, inputs))


def check_folder(folder: Path, work: Path) -> dict[str, str]:
    """Return the result of each check."""
    case = json.loads((folder / "contract.json").read_text("utf-8"))
    expected = torch.tensor(case["expected"]["output"])
    inputs = {name: torch.tensor(value) for name, value in case["batch"].items()}
    results = {}

    def check(name: str, function, *arguments):
        try:
            value = function(*arguments)
        except Exception as error:
            traceback.print_exc()
            results[name] = (str(error).splitlines() or [repr(error)])[0]
            return None
        results[name] = "ok"
        return value

    model = check("load", load_heads, folder, case)
    if model is None:
        return results
    check("logits", check_output, model, inputs, expected)
    check("save", save, model, case, work / "saved" / folder.name, folder)
    if "prompt" in case:
        check("ids", check_ids, model, case)
    if "loss" in case["expected"]:
        check("train", train, model, case, work / "trained" / folder.name)
    return {name: results.get(name, "-") for name in CHECKS}


def main() -> None:
    """Check every folder."""
    try:
        import modeling_aiayn  # noqa: F401
    except ImportError:
        pass
    else:
        raise SystemExit("The package must be absent, so that the folders' own code is used.")
    work, *folders = map(Path, sys.argv[1:])
    results = {folder.name: check_folder(folder, work) for folder in folders}
    print(json.dumps({"version": transformers.__version__, "results": results}))


if __name__ == "__main__":
    main()
