package org.apache.rocketmq.test.base;

import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicAttributes;
import org.apache.rocketmq.common.attribute.CQType;
import org.apache.rocketmq.common.attribute.TopicMessageType;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.test.util.MQAdminTestUtils;

/** Stands in for the class of this name in Apache's tests: makes topics, and starts nothing. */
public class IntegrationTestBase {
    private static final int TOPIC_SECONDS_MAX = 30;

    public static boolean initTopic(String topic, String names, String sample, CQType queueType) {
        return initTopic(topic, names, sample, BaseConf.QUEUE_NUMBERS, queueType);
    }

    public static boolean initTopic(
        String topic, String names, String sample, TopicMessageType type) {
        return initTopic(topic, names, sample, BaseConf.QUEUE_NUMBERS, CQType.SimpleCQ, type);
    }

    public static boolean initTopic(
        String topic, String names, String sample, int queues, CQType queueType) {
        return initTopic(topic, names, sample, queues, queueType, TopicMessageType.NORMAL);
    }

    public static boolean initTopic(
        String topic, String names, String sample, int queues, CQType queueType,
        TopicMessageType type) {
        Map<String, String> attributes = new HashMap<>();
        if (queueType != CQType.SimpleCQ) {
            attributes.put(
                "+" + TopicAttributes.QUEUE_TYPE_ATTRIBUTE.getName(), queueType.toString());
        }
        if (type != TopicMessageType.NORMAL) {
            attributes.put(
                "+" + TopicAttributes.TOPIC_MESSAGE_TYPE_ATTRIBUTE.getName(), type.toString());
        }
        return MQAdminTestUtils.createTopic(
            names, sample, topic, queues, attributes, TOPIC_SECONDS_MAX);
    }

    public static void initMQAdmin(String names) {
        try {
            MQAdminTestUtils.startAdmin(names);
        } catch (MQClientException problem) {
            throw new IllegalStateException("no administration client for " + names, problem);
        }
    }

    public static BrokerController createAndStartBroker(
        MessageStoreConfig store, BrokerConfig broker) {
        throw RemoteBroker.needsEmbedding("createAndStartBroker");
    }
}
