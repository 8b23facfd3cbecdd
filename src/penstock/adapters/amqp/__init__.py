"""AMQP 0-9-1: RabbitMQ clients, unmodified."""
