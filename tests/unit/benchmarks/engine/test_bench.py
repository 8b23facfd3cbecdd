import json

from click.testing import CliRunner

from benchmarks.engine.bench import command


def run(*arguments):
    result = CliRunner().invoke(command, ["engine", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_cpu_figure_comes_from_messages_that_went_all_the_way(tmp_path):
    rows = json.loads(
        run(
            "--only", "cpu", "--messages", "2000", "--rounds", "1", "--json", "--dir", str(tmp_path)
        )
    )
    assert len(rows) == 2
    assert "CPU per message" in rows[0]["figure"]
    assert float(rows[0]["value"].split()[0]) > 0


def test_the_table_names_machine_goal_and_way_of_measuring(tmp_path):
    text = run("--only", "cpu", "--messages", "1000", "--rounds", "1", "--dir", str(tmp_path))
    assert "Python" in text
    assert "| figure | measured | goal | how |" in text
    assert "<= 3 us" in text
