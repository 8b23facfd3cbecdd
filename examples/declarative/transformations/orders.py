"""Orders above 100 go to a topic of their own; source and sink are Penstock's."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
ENDPOINT = spark.conf.get("penstock.endpoint", "127.0.0.1:8815")

# Nothing has to be registered: Spark finds format("penstock") by itself.
dp.create_sink("large_orders", "penstock", {"endpoint": ENDPOINT, "topic": "large-orders"})


@dp.temporary_view
def orders() -> DataFrame:
    """Messages of the topic, decoded; what is no JSON has no fields."""
    messages = (
        spark.readStream.format("penstock")
        .option("endpoint", ENDPOINT)
        .option("topics", "orders")
        .option("subscription", "large-orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    return messages.selectExpr(
        "key", "from_json(cast(body as string), 'item string, amount double') as order"
    )


@dp.append_flow(target="large_orders")
def large_orders() -> DataFrame:
    """What the sink takes: messages, of which only the body is needed."""
    large = spark.readStream.table("orders").where("order.amount > 100")
    return large.selectExpr("key", "to_json(order) as body")
