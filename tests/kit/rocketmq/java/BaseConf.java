package org.apache.rocketmq.test.base;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ForkJoinPool;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.consumer.MQPullConsumer;
import org.apache.rocketmq.client.consumer.MQPushConsumer;
import org.apache.rocketmq.client.producer.MQProducer;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.attribute.CQType;
import org.apache.rocketmq.common.attribute.TopicMessageType;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.body.ClusterInfo;
import org.apache.rocketmq.test.client.rmq.RMQAsyncSendProducer;
import org.apache.rocketmq.test.client.rmq.RMQNormalConsumer;
import org.apache.rocketmq.test.client.rmq.RMQNormalProducer;
import org.apache.rocketmq.test.client.rmq.RMQTransactionalProducer;
import org.apache.rocketmq.test.clientinterface.AbstractMQConsumer;
import org.apache.rocketmq.test.clientinterface.AbstractMQProducer;
import org.apache.rocketmq.test.clientinterface.MQConsumer;
import org.apache.rocketmq.test.factory.ConsumerFactory;
import org.apache.rocketmq.test.listener.AbstractListener;
import org.apache.rocketmq.test.util.MQAdminTestUtils;
import org.apache.rocketmq.test.util.MQRandomUtils;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.admin.MQAdminExt;

/**
 * Stands in for the class of this name in Apache's tests, which starts a name server and three
 * brokers of Apache's inside the test: this one finds them at {@code -Dpenstock.names}.
 *
 * Names and signatures are those which the tests use; the rest is ours.
 */
public class BaseConf {
    public static final String NAMESRV_ADDR = System.getProperty("penstock.names");

    protected static final int BROKER_NUM = 3;
    protected static final int WAIT_TIME = 5;
    protected static final int CONSUME_TIME = 2 * 60 * 1000;
    protected static final int QUEUE_NUMBERS = 8;
    private static final long SECONDS_MAX = 30;

    protected static final String CLUSTER_NAME;
    protected static final String BROKER1_NAME;
    protected static final String BROKER2_NAME;
    protected static final String BROKER3_NAME;

    /** Nothing of it can be reached from here: a test that uses it fails with a null pointer. */
    protected static NamesrvController namesrvController;
    protected static BrokerController brokerController1;
    protected static BrokerController brokerController2;
    protected static BrokerController brokerController3;
    protected static List<BrokerController> brokerControllerList;
    protected static Map<String, BrokerController> brokerControllerMap = new LinkedHashMap<>();

    protected static List<Object> mqClients = new ArrayList<>();
    protected static boolean debug = false;

    static {
        System.setProperty(
            RemotingCommand.REMOTING_VERSION_KEY, Integer.toString(MQVersion.CURRENT_VERSION));
        IntegrationTestBase.initMQAdmin(NAMESRV_ADDR);
        ClusterInfo cluster = wholeCluster();
        CLUSTER_NAME = cluster.getClusterAddrTable().keySet().iterator().next();
        List<RemoteBroker> brokers = new ArrayList<>();
        new TreeMap<>(cluster.getBrokerAddrTable()).forEach((name, data) ->
            brokers.add(new RemoteBroker(CLUSTER_NAME, name, data.selectBrokerAddr())));
        BROKER1_NAME = brokers.get(0).name;
        BROKER2_NAME = brokers.get(1).name;
        BROKER3_NAME = brokers.get(2).name;
        brokerController1 = brokers.get(0).controller();
        brokerController2 = brokers.get(1).controller();
        brokerController3 = brokers.get(2).controller();
        brokerControllerList =
            Arrays.asList(brokerController1, brokerController2, brokerController3);
        for (int at = 0; at < BROKER_NUM; at++) {
            brokerControllerMap.put(brokers.get(at).name, brokerControllerList.get(at));
        }
    }

    private static ClusterInfo wholeCluster() {
        for (long until = System.nanoTime() + SECONDS_MAX * 1_000_000_000L; ; ) {
            ClusterInfo cluster = MQAdminTestUtils.getCluster(NAMESRV_ADDR);
            int found = cluster == null ? 0 : cluster.getBrokerAddrTable().size();
            if (found == BROKER_NUM) {
                return cluster;
            }
            if (System.nanoTime() > until) {
                throw new IllegalStateException(
                    NAMESRV_ADDR + " knows " + found + " brokers, not " + BROKER_NUM);
            }
        }
    }

    /** All are registered since this class was loaded, and none of them leaves. */
    public static void waitBrokerRegistered(String names, String cluster, int wanted) {
    }

    /** Penstock's queues have what the log has: nothing lags behind. */
    public boolean awaitDispatchMs(long timeMs) {
        return true;
    }

    public static String initTopic() {
        return initTopicWithName(MQRandomUtils.getRandomTopic());
    }

    public static String initTopic(TopicMessageType type) {
        return initTopicWithName(MQRandomUtils.getRandomTopic(), type);
    }

    public static String initTopicWithName(String topic) {
        return initTopicOnSampleTopicBroker(topic, CLUSTER_NAME);
    }

    public static String initTopicWithName(String topic, TopicMessageType type) {
        return initTopicOnSampleTopicBroker(topic, CLUSTER_NAME, type);
    }

    public static String initTopicOnSampleTopicBroker(String sample) {
        return initTopicOnSampleTopicBroker(MQRandomUtils.getRandomTopic(), sample);
    }

    public static String initTopicOnSampleTopicBroker(String sample, TopicMessageType type) {
        return initTopicOnSampleTopicBroker(MQRandomUtils.getRandomTopic(), sample, type);
    }

    public static String initTopicOnSampleTopicBroker(String topic, String sample) {
        IntegrationTestBase.initTopic(topic, NAMESRV_ADDR, sample, CQType.SimpleCQ);
        return topic;
    }

    public static String initTopicOnSampleTopicBroker(
        String topic, String sample, TopicMessageType type) {
        IntegrationTestBase.initTopic(topic, NAMESRV_ADDR, sample, type);
        return topic;
    }

    public static String initConsumerGroup() {
        return initConsumerGroup(MQRandomUtils.getRandomConsumerGroup());
    }

    public static String initConsumerGroup(String group) {
        MQAdminTestUtils.createSub(NAMESRV_ADDR, CLUSTER_NAME, group);
        return group;
    }

    public static Set<String> getBrokers() {
        return new HashSet<>(brokerControllerMap.keySet());
    }

    public static DefaultMQAdminExt getAdmin(String names) {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(3000);
        admin.setNamesrvAddr(names);
        admin.setPollNameServerInterval(100);
        return kept(admin);
    }

    public static RMQNormalProducer getProducer(String names, String topic) {
        return getProducer(names, topic, false);
    }

    public static RMQNormalProducer getProducer(String names, String topic, boolean tls) {
        return kept(new RMQNormalProducer(names, topic, tls));
    }

    public static RMQNormalProducer getProducer(
        String names, String topic, String group, String instance) {
        return kept(new RMQNormalProducer(names, topic, group, instance));
    }

    public static RMQTransactionalProducer getTransactionalProducer(
        String names, String topic, TransactionListener listener) {
        return kept(new RMQTransactionalProducer(names, topic, false, listener));
    }

    public static RMQAsyncSendProducer getAsyncProducer(String names, String topic) {
        return kept(new RMQAsyncSendProducer(names, topic));
    }

    public static RMQNormalConsumer getConsumer(
        String names, String topic, String expression, AbstractListener listener) {
        return getConsumer(names, topic, expression, listener, false);
    }

    public static RMQNormalConsumer getConsumer(
        String names, String topic, String expression, AbstractListener listener, boolean tls) {
        return getConsumer(names, initConsumerGroup(), topic, expression, listener, tls);
    }

    public static RMQNormalConsumer getConsumer(
        String names, String group, String topic, String expression, AbstractListener listener) {
        return getConsumer(names, group, topic, expression, listener, false);
    }

    public static RMQNormalConsumer getConsumer(
        String names, String group, String topic, String expression, AbstractListener listener,
        boolean tls) {
        return kept(ConsumerFactory.getRMQNormalConsumer(
            names, group, topic, expression, listener, tls));
    }

    private static <T> T kept(T client) {
        mqClients.add(client);
        return client;
    }

    public static void shutdown() {
        List<Object> clients = new ArrayList<>(mqClients);
        mqClients.clear();
        shutdown(clients);
    }

    /** Beside the test, which does not wait for it: some clients take seconds. */
    public static void shutdown(List<Object> clients) {
        clients.forEach(client -> ForkJoinPool.commonPool().execute(() -> close(client)));
    }

    private static void close(Object client) {
        if (client instanceof AbstractMQProducer) {
            ((AbstractMQProducer) client).shutdown();
        } else if (client instanceof AbstractMQConsumer) {
            ((AbstractMQConsumer) client).shutdown();
        } else if (client instanceof MQAdminExt) {
            ((MQAdminExt) client).shutdown();
        } else if (client instanceof MQProducer) {
            ((MQProducer) client).shutdown();
        } else if (client instanceof MQPullConsumer) {
            ((MQPullConsumer) client).shutdown();
        } else if (client instanceof MQPushConsumer) {
            ((MQPushConsumer) client).shutdown();
        } else if (client instanceof MQConsumer) {
            ((MQConsumer) client).shutdown();
        }
    }
}
