"""What operators see and change of AMQP, in RabbitMQ's field names."""
