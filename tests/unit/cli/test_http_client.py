"""What the broker answered, as lines for people."""

from penstock.cli.http_client import rows_as_lines, tell


def test_no_name_in_a_table_moves_the_cursor():
    columns = (("NAME", lambda row: row["name"]),)
    lines = rows_as_lines(columns, [{"name": "q\x1b]0;x\x07"}])
    assert lines[1] == "q\\x1b]0;x\\x07"


def test_no_answer_moves_the_cursor(capsys):
    tell({"done": "query 'q\x1b[2J\n' forgotten"}, is_json=False)
    assert capsys.readouterr().out == "query 'q\\x1b[2J\\n' forgotten\n"
