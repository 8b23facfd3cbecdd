"""A celery application with its tasks; ``test_celery.py`` runs a worker of it as a process.

    BROKER_URL=amqp://... python celery_worker.py QUEUE

Not a test module: the worker imports it by name, as a user's would be.
"""

import os
import sys

from celery import Celery
from kombu import Queue


def application(url, queue):
    """Task names are fixed, so that the caller can make the same ones."""
    app = Celery("penstock", broker=url, backend="rpc://")
    app.conf.update(
        task_queues=[Queue(queue, routing_key=queue, queue_arguments={"x-max-priority": 5})],
        task_default_queue=queue,
        task_default_exchange="",
        task_default_routing_key=queue,
        task_acks_late=True,
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
        broker_heartbeat=2,
        result_expires=60,
        worker_hijack_root_logger=False,
    )

    @app.task(name="add")
    def add(x, y):
        return x + y

    @app.task(name="shaky", bind=True, max_retries=3)
    def shaky(self, failures):
        if self.request.retries < failures:
            raise self.retry(countdown=0.05)
        return self.request.retries

    @app.task(name="broken")
    def broken():
        raise LookupError("nothing there")

    return app


if __name__ == "__main__":
    worker = application(os.environ["BROKER_URL"], sys.argv[1])
    worker.worker_main(["worker", "--pool", "solo", "--loglevel", "WARNING", "-n", sys.argv[1]])
