"""Files and folders that are written whole or not at all."""

import errno
import os
import re
from pathlib import Path

import pytest

from modeling_aiayn.saved import whole_files
from modeling_aiayn.saved.whole_files import (
    UNFINISHED_FOLDER,
    delete_folder,
    new_folder,
    replaced_files,
    write_file,
)

WEIGHTS = (("model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json"),)


def files(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_link_at_the_name_of_an_unfinished_file_is_not_followed(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / ".unfinished-scores.json").symlink_to(tmp_path / "mine")
    write_file(tmp_path / "scores.json", "{}")
    assert files(tmp_path) == {"mine": "mine", "scores.json": "{}"}


def test_a_new_folder_appears_at_the_end_of_its_block(tmp_path):
    target = tmp_path / "deep" / "model"
    with new_folder(target) as folder:
        (folder / "a").write_text("1")
        assert not target.exists()
    assert files(tmp_path) == {"deep/model/a": "1"}
    assert not (tmp_path / "deep" / UNFINISHED_FOLDER).exists()


def test_a_new_folder_whose_block_fails_leaves_nothing(tmp_path):
    def fail():
        with new_folder(tmp_path / "model") as folder:
            (folder / "a").write_text("1")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_an_empty_working_folder_can_become_the_new_folder(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "link").symlink_to("here")
    for name in ("here", "link"):
        with new_folder(tmp_path / name) as folder:
            (folder / "a").write_text(name)
        assert files(tmp_path / "here") == {"a": name}
        (tmp_path / "here" / "a").unlink()


def test_a_used_folder_is_rejected_before_the_block(tmp_path):
    (tmp_path / "a").write_text("1")
    with pytest.raises(FileExistsError, match="exists and is not empty"), new_folder(tmp_path):
        pytest.fail("the block ran")


def test_a_mount_point_is_rejected_before_the_block(tmp_path, monkeypatch):
    """Nothing can be renamed to it."""
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path).name == "out")
    with pytest.raises(FileExistsError, match="is a mount point"), new_folder(tmp_path / "out"):
        pytest.fail("the block ran")
    with new_folder(tmp_path / "out" / "new"):
        pass


def test_a_folder_whose_name_was_taken_meanwhile_is_kept(tmp_path):
    """Exports take minutes: another process may have made a folder of this name."""

    def write():
        with new_folder(tmp_path / "model") as folder:
            (folder / "a").write_text("mine")
            (tmp_path / "model").mkdir()
            (tmp_path / "model" / "a").write_text("theirs")

    kept = tmp_path / UNFINISHED_FOLDER / "model"
    with pytest.raises(OSError, match=re.escape(str(kept))):
        write()
    assert files(tmp_path) == {"model/a": "theirs", f"{UNFINISHED_FOLDER}/model/a": "mine"}


def test_replaced_files_leave_other_files_and_weights_of_other_kinds_alone(tmp_path):
    others = {"model.fp16.safetensors": "v", "model_before.safetensors": "b", "notes": "n"}
    earlier = {"model-1-of-2.safetensors": "1", "model.safetensors.index.json": "i", "c": "old"}
    for name, text in (others | earlier).items():
        (tmp_path / name).write_text(text)
    with replaced_files(tmp_path, WEIGHTS) as folder:
        (folder / "model.safetensors").write_text("new")
        (folder / "c").write_text("new")
        (folder / "sub").mkdir()
        (folder / "sub" / "d").write_text("new")
        assert files(tmp_path)["c"] == "old"
    new = {"model.safetensors": "new", "c": "new", "sub/d": "new"}
    assert files(tmp_path) == others | new


def test_replaced_files_whose_block_fails_change_nothing(tmp_path):
    (tmp_path / "model.safetensors").write_text("old")

    def fail():
        with replaced_files(tmp_path, WEIGHTS) as folder:
            (folder / "model.safetensors").write_text("new")
            raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"):
        fail()
    assert files(tmp_path) == {"model.safetensors": "old"}


def test_an_error_while_files_are_moved_keeps_the_new_ones(tmp_path, monkeypatch):
    (tmp_path / "model.safetensors").write_text("old")

    def fail():
        with replaced_files(tmp_path, WEIGHTS) as folder:
            (folder / "model.safetensors").write_text("new")
            (folder / "config.json").mkdir()
            (folder / "config.json" / "x").write_text("new")
            (tmp_path / "config.json").mkdir()
            (tmp_path / "config.json" / "x").mkdir()

    with pytest.raises(OSError, match="Is a directory"):
        fail()
    assert files(tmp_path) == {
        f"{UNFINISHED_FOLDER}/files/model.safetensors": "new",
        f"{UNFINISHED_FOLDER}/files/config.json/x": "new",
    }


def test_a_file_is_replaced_at_once(tmp_path, monkeypatch):
    write_file(tmp_path / "a", "1\n")
    write_file(tmp_path / "a", "2\n")
    assert files(tmp_path) == {"a": "2\n"}
    monkeypatch.setattr(whole_files, "force_to_disk", lambda path: os.stat("/does/not/exist"))
    with pytest.raises(FileNotFoundError):
        write_file(tmp_path / "a", "3\n")
    assert files(tmp_path)["a"] == "2\n"


def test_a_file_that_cannot_be_renamed_is_not_lost(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(PermissionError):
        write_file(tmp_path / "a", "3")
    assert files(tmp_path) == {".unfinished-a": "3"}


def test_a_deleted_folder_leaves_nothing(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    delete_folder(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
