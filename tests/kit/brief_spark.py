"""A Spark of seconds: what most of its time would go to, and what its tests can do without."""

JVM = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""For ``JAVA_TOOL_OPTIONS``: the first compiler only, one thread that collects, and classes are
taken as they are: a fifth of what a start costs is looking at Spark's."""
SETTINGS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    # Spark's default starts a process or two for each file it writes.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""For sessions that nobody kills: those that are killed have Spark's own way with checkpoints."""
