"""Fine-tune a translation model in a training loop of your own, on any number of devices.

accelerate launch examples/finetune_with_accelerate.py --train data/train --output runs/tuned

data/train stands for data/train.en and data/train.de: a line of .de translates the line of .en.
"""

import argparse

import torch
from accelerate import Accelerator
from datasets import load_dataset
from torch.utils.data import DataLoader
from tqdm import tqdm
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, DataCollatorForSeq2Seq
from transformers import get_cosine_schedule_with_warmup as cosine_schedule

from modeling_aiayn.saved.loading import find_model

parser = argparse.ArgumentParser(description="Fine-tune a translation model.")
parser.add_argument("--model", default="aiayn-en-de", help="a folder, or aiayn-en-de")
for name in ("--train", "--output"):
    parser.add_argument(name, required=True)
parser.add_argument("--epochs", type=int, default=5)
flags = parser.parse_args()
tokenizer = AutoTokenizer.from_pretrained(find_model(flags.model))
model = AutoModelForSeq2SeqLM.from_pretrained(find_model(flags.model))
accelerator = Accelerator()
sides = [load_dataset("text", data_files=f"{flags.train}.{side}")["train"] for side in ("en", "de")]
pairs = sides[0].add_column("target", sides[1]["text"])


def encode(rows):
    return tokenizer(rows["text"], text_target=rows["target"])


with accelerator.main_process_first():
    pairs = pairs.map(encode, batched=True, remove_columns=["text", "target"])
collate = DataCollatorForSeq2Seq(tokenizer, model=model)
batches = DataLoader(pairs, batch_size=64, shuffle=True, collate_fn=collate)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98))
model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
updates = flags.epochs * len(batches)
schedule = cosine_schedule(optimizer, min(100, updates // 10), updates)
model.train()
for epoch in range(flags.epochs):
    for batch in tqdm(batches, f"epoch {epoch + 1}", disable=not accelerator.is_main_process):
        loss = model(**batch, label_smoothing_factor=0.1).loss
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    accelerator.print(f"epoch {epoch + 1}: loss {loss.item():.3f} in the last batch")
if accelerator.is_main_process:
    accelerator.unwrap_model(model).save_pretrained(flags.output)
    tokenizer.save_pretrained(flags.output)
accelerator.end_training()
