"""Fine-tune a translation model on your own pairs, with transformers' own Seq2SeqTrainer.

python examples/finetune_with_trainer.py --train data/train --valid data/valid --output_dir runs/tuned

data/train stands for data/train.en and data/train.de, with the same number of lines; the model
learns to translate from .en to .de. All arguments of Seq2SeqTrainingArguments are flags: for
example, --bf16 true on a GPU.
"""  # noqa: E501

from datasets import load_dataset
from sacrebleu import corpus_bleu
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    HfArgumentParser,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from modeling_aiayn.saved.loading import find_model

parser = HfArgumentParser(Seq2SeqTrainingArguments)
parser.add_argument("--model", default="aiayn-en-de", help="a folder, or aiayn-en-de")
parser.add_argument("--train", required=True, help="data/train for data/train.en and .de")
parser.add_argument("--valid", required=True, help="the same for the validation pairs")
parser.set_defaults(num_train_epochs=5, learning_rate=1e-3, lr_scheduler_type="cosine")
parser.set_defaults(per_device_train_batch_size=128, per_device_eval_batch_size=128)
parser.set_defaults(warmup_steps=0.1, label_smoothing_factor=0.1, predict_with_generate=True)
parser.set_defaults(eval_strategy="epoch", save_strategy="epoch", save_total_limit=1)
arguments, flags = parser.parse_args_into_dataclasses()

tokenizer = AutoTokenizer.from_pretrained(find_model(flags.model))
model = AutoModelForSeq2SeqLM.from_pretrained(find_model(flags.model))


def read(prefix):
    sides = [load_dataset("text", data_files=f"{prefix}.{side}")["train"] for side in ("en", "de")]
    pairs = sides[0].add_column("target", sides[1]["text"])
    return pairs.map(lambda row: tokenizer(row["text"], text_target=row["target"]), batched=True)


def bleu(prediction):
    both = (prediction.predictions, prediction.label_ids)
    texts = [tokenizer.batch_decode(ids.clip(0), skip_special_tokens=True) for ids in both]
    return {"bleu": corpus_bleu(texts[0], [texts[1]]).score}


trainer = Seq2SeqTrainer(
    model,
    arguments,
    data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    train_dataset=read(flags.train),
    eval_dataset=read(flags.valid),
    processing_class=tokenizer,
    compute_metrics=bleu,
)
trainer.train()
trainer.save_model()
