"""Train a classifier on the encoder of a translation model, with transformers' own Trainer.

python examples/finetune_classifier.py --train train.tsv --valid valid.tsv --output_dir runs/classes

Each line of a file holds a label, a tab, and a text. The labels are names, such as "positive".
All arguments of TrainingArguments are flags.
"""

from datasets import ClassLabel, load_dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
)

from modeling_aiayn.saved.loading import find_model

parser = HfArgumentParser(TrainingArguments)
parser.add_argument("--model", default="aiayn-en-de", help="a folder, or a bundled model")
parser.add_argument("--train", required=True, help="a file of labels and texts")
parser.add_argument("--valid", required=True, help="the same for validation")
parser.set_defaults(num_train_epochs=5, learning_rate=5e-4, lr_scheduler_type="cosine")
parser.set_defaults(per_device_train_batch_size=32, warmup_steps=0.1, save_total_limit=1)
parser.set_defaults(eval_strategy="epoch", save_strategy="epoch")
arguments, flags = parser.parse_args_into_dataclasses()

tokenizer = AutoTokenizer.from_pretrained(find_model(flags.model))
files = {"train": flags.train, "valid": flags.valid}
options = {"delimiter": "\t", "column_names": ["label", "text"], "quoting": 3}
options |= {"keep_default_na": False}  # "None" is a text
rows = load_dataset("csv", data_files=files, **options)
names = sorted(set(rows["train"]["label"]))
rows = rows.cast_column("label", ClassLabel(names=names))
rows = rows.map(lambda row: tokenizer(row["text"], truncation=True, max_length=256), batched=True)
model = AutoModelForSequenceClassification.from_pretrained(
    find_model(flags.model),
    num_labels=len(names),
    id2label=dict(enumerate(names)),
    label2id={name: index for index, name in enumerate(names)},
)


def accuracy(prediction):
    return {"accuracy": (prediction.predictions.argmax(-1) == prediction.label_ids).mean()}


data = {"train_dataset": rows["train"], "eval_dataset": rows["valid"]}
trainer = Trainer(model, arguments, **data, processing_class=tokenizer, compute_metrics=accuracy)
trainer.train()
trainer.save_model()
