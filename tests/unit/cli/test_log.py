import json

import pytest

from kit.log_maker import LogMaker
from penstock.cli.main import main
from penstock.log.storage import DiskStorage
from penstock.model.record import neutral_record


@pytest.fixture
def maker(tmp_path):
    maker = LogMaker(DiskStorage(tmp_path))
    maker.append(b"first", b"second \x1b[31m")
    maker.append_records(neutral_record(b"\xff\x00", key=b"k1", tag=b"red"))
    maker.mark()
    yield maker
    maker.close()


def penstock(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def damage(tmp_path, position):
    path = tmp_path / "log" / f"{0:020d}.seg"
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_checking_a_good_log_exits_with_zero(capsys, tmp_path, maker):
    code, out, _ = penstock(capsys, "log", "check", tmp_path)
    assert code == 0
    assert "records  3" in out
    assert out.endswith("the log is good\n")


def test_checking_a_damaged_log_names_file_and_byte_and_exits_with_one(capsys, tmp_path, maker):
    victim = maker.records[1].position
    damage(tmp_path, victim + 101)
    code, out, _ = penstock(capsys, "log", "check", tmp_path)
    assert code == 1
    assert f"{0:020d}.seg byte {victim}: damaged record" in out
    assert "1 records lost" in out


def test_checking_as_json(capsys, tmp_path, maker):
    damage(tmp_path, maker.records[1].position + 101)
    code, out, _ = penstock(capsys, "log", "check", tmp_path, "--json")
    report = json.loads(out)
    assert (code, report["is_damaged"], report["records"]) == (1, True, 2)
    assert report["damaged"][0]["position"] == maker.records[1].position


def test_an_unfinished_write_is_told_and_is_no_damage(capsys, tmp_path, maker):
    with (tmp_path / "log" / f"{0:020d}.seg").open("ab") as file:
        file.write(b"PNST\x01")
    code, out, _ = penstock(capsys, "log", "check", tmp_path)
    assert code == 0
    assert "unfinished write of 5 bytes" in out


def test_a_directory_without_a_log_is_one_sentence(capsys, tmp_path):
    code, _, err = penstock(capsys, "log", "check", tmp_path)
    assert code == 1
    assert err.startswith("penstock: ")
    assert "holds no log" in err
    assert penstock(capsys, "log", "dump", tmp_path / "missing")[0] == 2


def test_dumping_prints_a_line_for_each_record(capsys, tmp_path, maker):
    code, out, err = penstock(capsys, "log", "dump", tmp_path)
    lines = out.splitlines()
    assert (code, len(lines), err) == (0, 3, "")
    assert "1@0" in lines[0]
    assert "first" not in lines[0]
    assert "key='k1' tag='red'" in lines[2]


def test_dumped_bodies_cannot_steer_the_terminal(capsys, tmp_path, maker):
    _, out, _ = penstock(capsys, "log", "dump", tmp_path, "--body")
    lines = out.splitlines()
    assert lines[0].endswith(" first")
    assert lines[1].endswith("0x" + b"second \x1b[31m".hex())
    assert "\x1b" not in out


def test_dumping_from_a_position_with_a_limit_as_json(capsys, tmp_path, maker):
    start = maker.records[1].position
    _, out, _ = penstock(
        capsys, "log", "dump", tmp_path, "--from", start, "--limit", 1, "--json", "--body"
    )
    (row,) = [json.loads(line) for line in out.splitlines()]
    assert row["position"] == start
    assert row["body_base64"]
    assert row["targets"] == [[1, 1]]


def test_a_damaged_record_is_told_on_standard_error(capsys, tmp_path, maker):
    damage(tmp_path, maker.records[0].position + 101)
    code, out, err = penstock(capsys, "log", "dump", tmp_path)
    assert code == 0
    assert len(out.splitlines()) == 2
    assert "damaged record" in err
