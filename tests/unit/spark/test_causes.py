import pytest

from penstock.spark.causes import CHARACTERS_MAX, cause_of

OWN = """[STREAM_FAILED] Query [id = 1] terminated with exception: An exception was thrown:
Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()

  File "shop.py", line 2, in enrich
    raise ValueError(
penstock.spark.options.BadOption: there is no option 'x';
did you mean y?
 SQLSTATE: 38000
	at org.apache.spark.Executor.run(Executor.scala:1)
"""
FUNCTION = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most \
recent call last):
  File "functions.py", line 22, in check
    raise LookupError("nobody knows junk")
LookupError: nobody knows junk
 SQLSTATE: 38000
=== Streaming Query ===
Identifier: strict [id = 1, runId = 2]
Current Committed Offsets: {}

Logical Plan:
WriteToMicroBatchDataSource penstock_table
"""
CHAINED = """Traceback (most recent call last):
  File "a.py", line 1, in f
    g()
KeyError: 'id'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 2, in f
    raise ValueError("no id in it") from None
shop.errors.NoId: no id in it
"""
COLUMN = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nosuch` cannot be resolved. \
Did you mean one of the following? [`key`]. SQLSTATE: 42703; line 1 pos 7;
'Project ['nosuch]
+- SubqueryAlias messages
"""
SYNTAX = """
[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'. SQLSTATE: 42601 (line 1, pos 0)

== SQL ==
SELEC 1
^^^
"""
CAST = """[CAST_INVALID_INPUT] The value 'junk' cannot be cast to "INT". SQLSTATE: 22018
== SQL (line 1, position 8) ==
SELECT cast(value AS int) AS number FROM messages
       ^^^^^^^^^^^^^^^^^^

=== Streaming Query ===
Identifier: cast [id = 1]
"""
TASK = """org.apache.spark.sql.streaming.StreamingQueryException: [STREAM_FAILED] Query ended: \
Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most recent failure: Lost \
task 0.3 in stage 3.0 (TID 5) (127.0.0.1 executor driver): java.lang.OutOfMemoryError: Java \
heap space
	at java.base/java.util.Arrays.copyOf(Arrays.java:1)

Driver stacktrace:
	at org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:1)
"""
WRAPPED = """org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed. SQLSTATE: 58030
	at org.apache.spark.sql.Writer.run(Writer.scala:1)
Caused by: java.io.IOException: No space left on device
	at java.base/java.io.FileOutputStream.writeBytes(Native Method)
	... 12 more
"""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (OWN, "there is no option 'x'; did you mean y?"),
        (FUNCTION, "LookupError: nobody knows junk"),
        (CHAINED, "NoId: no id in it"),
        (
            COLUMN,
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nosuch` cannot be resolved."
            " Did you mean one of the following? [`key`]. (line 1, position 7)",
        ),
        (
            SYNTAX,
            "[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'. (line 1, position 0)",
        ),
        (
            CAST,
            "[CAST_INVALID_INPUT] The value 'junk' cannot be cast to \"INT\". (line 1, position 8)",
        ),
        (TASK, "OutOfMemoryError: Java heap space"),
        (WRAPPED, "IOException: No space left on device"),
        (
            "org.apache.spark.SparkException: [INTERNAL_ERROR] No.\n\tat a.b(C.scala:1)",
            "[INTERNAL_ERROR] No.",
        ),
        ("Traceback (most recent call last):\n  File\nStopIteration\n", "StopIteration"),
        ("plain words", "plain words"),
        ("", ""),
    ],
)
def test_of_what_spark_says_the_cause_is_told(text, sentence):
    assert cause_of(Exception(text)) == sentence
    assert cause_of(text) == sentence


def test_a_busy_machine_is_called_one():
    busy = cause_of("x\nPython worker failed to connect back.\ny")
    assert busy.endswith("this machine is too busy")


def test_a_sentence_has_an_end():
    assert len(cause_of("word " * 5000)) == CHARACTERS_MAX
