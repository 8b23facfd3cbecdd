"""RabbitMQ's management API, as far as tools use it; paths and fields are RabbitMQ's."""
