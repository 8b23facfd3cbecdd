"""RocketMQ's name server: who has which topic, for clients and for other brokers."""
