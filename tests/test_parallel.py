"""Two processes compute what one does: DDP, FSDP2 and tensor parallelism, by torchrun over gloo."""

import json
import os
import subprocess
import sys
from pathlib import Path

import parallel_worker
import pytest
import torch
import yaml
from accelerate.commands.config.config_args import ClusterConfig
from conftest import ROOT, small_model
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM

import aiayn
from modeling_aiayn.data.embedded_corpus import generate_pairs
from modeling_aiayn.saved.languages import set_languages
from modeling_aiayn.tokenization import train_bpe_tokenizer

pytestmark = pytest.mark.long

MODES = ["ddp", "blockwise", "fsdp", "accelerate", "tp"]


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
# Its --cpu has MPI alone for more than one process; a script joins them by --use_cpu.
ACCELERATE = [
    *(sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"),
    *("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"),
    *("--main_process_port", "0"),
]


def launch(*arguments, launcher=TORCHRUN, **environment):
    """Run a program as two processes; one thread each, as there are two cores."""
    return subprocess.run(
        [*launcher, *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        timeout=300,
        capture_output=True,
        text=True,
        check=False,
    )


def torchrun(*arguments):
    """Run a program as two processes and return its output."""
    done = launch(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Folders with the results of each mode, and of one process alone."""
    folder = tmp_path_factory.mktemp("parallel")
    # What tensor parallelism halves is even, and no two halves are alike.
    model = small_model(
        d_model=16, encoder_attention_heads=2, decoder_attention_heads=4, encoder_ffn_dim=14,
        decoder_ffn_dim=18, vocab_size=32, dropout=0.0,
    )  # fmt: skip
    model.save_pretrained(folder)
    source = [[5, 6, 7, 8, 2, 1, 1], [9, 10, 11, 12, 13, 14, 2], [15, 2, 1, 1, 1, 1, 1], [9, 9, 2]]
    labels = [[15, 16, 17, 2], [18, 19, 2], [3, 2], [4, 5, 2]]
    batch = {
        "input_ids": torch.tensor([row + [1] * (7 - len(row)) for row in source]),
        "labels": torch.tensor([row + [-100] * (4 - len(row)) for row in labels]),
    }
    torch.save(batch, folder / "batch.pt")
    torchrun(Path(__file__).parent / "parallel_worker.py", ",".join(MODES), folder, folder)
    (folder / "alone").mkdir()
    parallel_worker.main("alone", folder, folder / "alone")
    return folder


@pytest.mark.parametrize("mode", MODES)
def test_two_processes_give_the_loss_gradients_weights_and_translations_of_one(results, mode):
    folders = (results / mode, results / "alone")
    got, expected = (json.loads((each / "result.json").read_text()) for each in folders)
    assert got["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert got["ids"] == expected["ids"]
    assert len({tuple(row) for row in got["ids"]}) > 1 and len(got["ids"][0]) > 3
    ours, theirs = (torch.load(each / "grad.pt", weights_only=True) for each in folders)
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, atol=1e-5, rtol=1e-4, msg=name)
    # The library writes tied matrices of sharded models several times; loaded, they are one again.
    ours, theirs = map(AutoModelForSeq2SeqLM.from_pretrained, folders)
    assert ours.lm_head.weight is ours.get_input_embeddings().weight
    for name, weight in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], weight, atol=1e-5, rtol=1e-4, msg=name)
    # Its code too: FSDP2 gives a model a class of torch.
    ours, theirs = (sorted(path.name for path in each.glob("*.py")) for each in folders)
    assert ours == theirs != []
    ours, theirs = (json.loads((each / "config.json").read_text()) for each in folders)
    assert ours["auto_map"] == theirs["auto_map"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs of two processes, and of one."""
    folder = tmp_path_factory.mktemp("trained")
    worker = Path(__file__).parent / "parallel_trainer.py"
    torchrun(worker, folder / "two")
    subprocess.run(
        [sys.executable, str(worker), str(folder / "one")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=300,
        check=True,
        capture_output=True,
    )
    return folder


def write_pairs(folder):
    """Files of training and validation pairs, and the flags that name them."""
    for name in ("train", "validation"):
        rows = (f"{pair.source}\t{pair.target}\n" for pair in generate_pairs(name, 30))
        (folder / f"{name}.tsv").write_text("".join(rows))
        yield from (f"--{name}_file", folder / f"{name}.tsv")


def read_log(folder):
    return json.loads((folder / "log.json").read_text())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_training_does_not_depend_on_the_number_of_processes(trained, smoothing):
    """Eight pairs in an update, in one process or four in each of two."""
    name = f"smoothing-{smoothing}"
    two, one = (read_log(trained / number / name) for number in ("two", "one"))
    assert len(one) == 6
    for got, expected in zip(two, one, strict=True):
        if "loss" in expected:
            assert got["loss"] == pytest.approx(expected["loss"], rel=1e-5)
            assert got["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4)
        else:
            assert got["eval_loss"] == pytest.approx(expected["eval_loss"], rel=1e-5)
    weights = [
        load_file(trained / number / name / "weights.safetensors") for number in ("two", "one")
    ]
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("batches", ["tokens", "groups"])
def test_two_processes_stop_on_one_s_signal_and_resume_exactly(trained, batches):
    """With token batches and an average; with groups, in the second epoch."""
    names = [f"{name}-{batches}" for name in ("whole", "cut")]
    logs = [read_log(trained / "two" / name) for name in names]
    keys = ("step", "loss", "grad_norm", "learning_rate", "padding_share")
    assert [[e[key] for key in keys] for e in logs[0]] == [
        [e[key] for key in keys] for e in logs[1]
    ]
    weights = [load_file(trained / "two" / name / "weights.safetensors") for name in names]
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=0)
    found = {path.name for path in (trained / "two" / names[1]).glob("checkpoint-*")}
    numbers = (4, 6, 8, 10) if batches == "tokens" else (17,)
    assert found == {f"checkpoint-{number}" for number in numbers}


@pytest.mark.parametrize("launcher", [TORCHRUN, ACCELERATE], ids=["torchrun", "accelerate"])
def test_the_training_script_runs_as_two_processes(tmp_path, launcher):
    """30 pairs are no multiple of two batches of 8: two rows are there twice, and do not count."""
    done = launch(
        *(ROOT / "scripts" / "train_translation.py", *write_pairs(tmp_path)),
        *("--output_dir", tmp_path / "run", "--preset", "tiny"),
        *("--config_overrides", "{encoder_layers: 1, decoder_layers: 1, d_model: 16}"),
        *("--vocab_size", "420", "--max_steps", "2", "--use_cpu", "true"),
        *("--generation_max_length", "4", "--report_to", "none"),
        *("--eval_strategy", "steps", "--eval_steps", "2", "--per_device_eval_batch_size", "8"),
        launcher=launcher,
        # Show the progress bars, although stderr is no terminal.
        **dict.fromkeys(aiayn.NO_BARS, ""),
    )
    assert done.returncode == 0, done.stderr
    assert "bleu " in done.stdout
    assert (tmp_path / "run" / "model.safetensors").exists()
    # One process encodes for both.
    assert done.stderr.count("encoding train: 100%") == 1
    text = (tmp_path / "train.tsv").read_text().replace("\t", "\n")
    tokenizer = train_bpe_tokenizer(text.splitlines(), 420)
    set_languages(tokenizer, "en", "de")
    tokenizer.save_pretrained(tmp_path / "alone")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "run" / name).read_text() == (tmp_path / "alone" / name).read_text()


def test_a_job_ends_while_a_collective_is_under_way():
    """A process that waited for gloo's thread with Python's lock, which the thread needs, hung."""
    torchrun(Path(__file__).parent / "parallel_ending.py")


def test_machines_whose_folders_differ_do_not_resume(tmp_path):
    """Else the process without the checkpoint would send its new weights to the others."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\nfrom aiayn import run_job\nsys.argv[-1] += os.environ['RANK']\n"
        "run_job('train-translation')\n"
    )
    flags = (*write_pairs(tmp_path), "--preset", "tiny", "--vocab_size", "420", "--use_cpu", "true")
    flags += ("--resume", "auto", "--save_steps", "1", "--eval_strategy", "no")
    flags += ("--report_to", "none", "--predict_with_generate", "false")
    folder = ("--output_dir", tmp_path / "run")
    done = launch(script, *flags, "--max_steps", "1", *folder)
    assert done.returncode == 0, done.stderr
    done = launch(script, *flags, "--max_steps", "2", *folder)
    assert done.returncode != 0
    assert "The processes found checkpoint-1 and no checkpoint in " in done.stderr
    assert not (tmp_path / "run1" / "checkpoint-2").exists()


def test_missing_data_ends_all_processes(tmp_path):
    done = launch(
        ROOT / "scripts" / "train_translation.py",
        *("--train_file", "none", "--validation_file", "none", "--use_cpu", "true"),
        *("--output_dir", tmp_path / "run"),
    )
    assert done.returncode != 0
    assert "error: No such file: none.en (or none.en.gz)." in done.stderr
    assert "Traceback" not in done.stderr.partition("torch/distributed")[0]


@pytest.mark.skipif(torch.accelerator.is_available(), reason="accelerators are joined by default")
def test_processes_that_are_not_connected_are_rejected(tmp_path):
    script = ROOT / "scripts" / "train_translation.py"
    done = launch(script, "--output_dir", tmp_path)
    assert done.returncode != 0
    message = "2 processes were launched, but accelerate found no accelerators to connect them"
    assert f"error: {message}" in done.stderr and "pass --use_cpu true" in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_fsdp_file_is_valid_for_accelerate():
    """`accelerate launch --config_file examples/accelerate_fsdp2.yaml`, as the README says."""
    path = ROOT / "examples" / "accelerate_fsdp2.yaml"
    config = ClusterConfig.from_yaml_file(path)
    assert config.fsdp_config["fsdp_version"] == 2
    wrapped = config.fsdp_config["fsdp_transformer_layer_cls_to_wrap"].split(",")
    assert sorted(wrapped) == sorted(small_model()._no_split_modules)
    assert yaml.safe_load(path.read_text())["distributed_type"] == "FSDP"


def test_training_under_accelerate_s_fsdp2_is_training_with_copies(tmp_path):
    """With the settings of examples/accelerate_fsdp2.yaml: scores, weights and the saved folder."""
    recipe = yaml.safe_load((ROOT / "examples" / "accelerate_fsdp2.yaml").read_text())
    settings = {
        name.upper().replace("LAYER_CLS", "CLS"): str(value)
        for name, value in recipe["fsdp_config"].items()
    }
    script = (
        *(ROOT / "scripts" / "train_translation.py", *write_pairs(tmp_path)),
        *("--preset", "tiny", "--vocab_size", "420", "--use_cpu", "true", "--report_to", "none"),
        *("--config_overrides", "{encoder_layers: 1, decoder_layers: 1, d_model: 16, dropout: 0}"),
        *("--max_steps", "4", "--learning_rate", "0.01", "--generation_max_length", "9"),
        *("--predict_with_generate", "true", "--per_device_eval_batch_size", "3"),
        *("--eval_strategy", "steps", "--eval_steps", "2", "--save_steps", "2"),
    )
    whole, divided = tmp_path / "whole", tmp_path / "divided"
    done = launch(*script, "--output_dir", whole)
    assert done.returncode == 0, done.stderr
    program = (ROOT / "tests" / "fsdp_on_cpus.py", *script, "--output_dir", divided)
    done = launch(*program, ACCELERATE_USE_FSDP="true", **settings)
    assert done.returncode == 0, done.stderr
    ours, theirs = (load_file(each / "model.safetensors") for each in (divided, whole))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    keys = ("step", "loss", "eval_loss", "eval_bleu", "grad_norm")
    ours, theirs = (
        [
            {key: entry[key] for key in keys if key in entry}
            for entry in json.loads((each / "trainer_state.json").read_text())["log_history"]
        ]
        for each in (divided, whole)
    )
    assert len(ours) >= 2
    for entry, expected in zip(ours, theirs, strict=True):
        assert entry == pytest.approx(expected, rel=1e-4)
    for pattern in ("*.py", "config.json"):
        ours, theirs = (
            {path.name: path.read_text() for path in folder.glob(pattern)}
            for folder in (divided, whole)
        )
        assert ours == theirs != {}
