"""``penstock spark``: the zip for executors."""

import zipfile

import pytest

from penstock.cli import main as cli


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        cli.main(("spark", "package", *arguments))
    printed = capsys.readouterr()
    return ended.value.code, printed.out, printed.err


def test_the_zip_is_written_to_a_file_or_into_a_directory(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "mine.zip")
    assert (code, "--py-files mine.zip" in out) == (0, True)
    assert "penstock/spark/sink.py" in zipfile.ZipFile("mine.zip").namelist()
    run(capsys)
    assert (tmp_path / "penstock-executor.zip").read_bytes() == (tmp_path / "mine.zip").read_bytes()


def test_a_place_that_cannot_be_written_is_told(tmp_path, capsys):
    (tmp_path / "file").touch()
    code, _, err = run(capsys, str(tmp_path / "file" / "x.zip"))
    assert code == 1
    assert "x.zip cannot be written (" in err
