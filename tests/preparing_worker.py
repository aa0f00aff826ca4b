"""Prepare the data of two files, as one of the processes of a run, and print a hash of the result.

python preparing_worker.py TRAIN VALIDATION FOLDER SECONDS

The first process takes SECONDS longer; the others wait at a barrier for 5 seconds at most.
"""

import hashlib
import json
import sys
import time

from modeling_aiayn.training import AiaynTrainingArguments, prepared_data
from modeling_aiayn.training.data import DataArguments, load_splits
from modeling_aiayn.training.setup import ModelArguments, NewModel


def main(train, validation, folder, seconds):
    args = AiaynTrainingArguments(
        output_dir=folder, use_cpu=True, ddp_timeout=5, report_to="none", disable_tqdm=True
    )
    is_slow = args.local_process_index == 0

    def load(data):
        time.sleep(float(seconds) if is_slow else 0)
        return load_splits(data)

    prepared_data.load_splits = load
    files = {"train_file": [train], "validation_file": [validation]}
    data = DataArguments(**files, preprocessing_num_workers=2)
    start = NewModel(ModelArguments(vocab_size=600))
    prepared = prepared_data.prepare_data_once(args, data, start.tokenizers)
    content = [prepared.splits["train"][:], prepared.source_tokenizer.get_vocab()]
    text = json.dumps(content, sort_keys=True)
    # Whole lines, so that those of two processes do not mix.
    sys.stdout.write(f"prepared {hashlib.sha256(text.encode()).hexdigest()}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
