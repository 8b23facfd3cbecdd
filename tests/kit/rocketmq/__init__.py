"""RocketMQ's broker and peers on a workbench, and other brokers as processes."""
