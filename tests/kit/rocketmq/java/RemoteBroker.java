package org.apache.rocketmq.test.base;

import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.broker.topic.TopicConfigManager;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.admin.OffsetWrapper;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.mockito.Mockito;
import org.mockito.invocation.InvocationOnMock;
import org.mockito.stubbing.Answer;

/**
 * What Apache's tests read from a broker inside their own process, asked over the network.
 *
 * Its settings are a plain object: what a test sets there (store, buffers, polling) changes
 * nothing. Everything that has no request in the protocol throws, so that no test passes by it.
 */
final class RemoteBroker {
    private static final long MILLIS_MAX = 5000;
    private static DefaultMQAdminExt admin;

    final String name;
    private final String address;
    private final BrokerConfig config = new BrokerConfig();
    private final Map<String, Object> parts = new HashMap<>();

    RemoteBroker(String cluster, String name, String address) {
        this.name = name;
        this.address = address;
        config.setBrokerName(name);
        config.setBrokerClusterName(cluster);
        parts.put("getBrokerAddr", address);
        parts.put("getBrokerConfig", config);
        parts.put("getMessageStore", part(DefaultMessageStore.class, this::store));
        parts.put("getConsumerOffsetManager", part(ConsumerOffsetManager.class, this::offsets));
        parts.put("getTopicConfigManager", part(TopicConfigManager.class, this::topics));
    }

    static UnsupportedOperationException needsEmbedding(String what) {
        return new UnsupportedOperationException(what + " needs Apache's broker in this process");
    }

    BrokerController controller() {
        return part(BrokerController.class, call -> {
            Object found = parts.get(call.getMethod().getName());
            if (found == null) {
                throw needsEmbedding(call.getMethod().getName());
            }
            return found;
        });
    }

    private static <T> T part(Class<T> type, Answer<?> answer) {
        return Mockito.mock(type, Mockito.withSettings().stubOnly().defaultAnswer(call ->
            call.getMethod().getName().equals("toString") ? type.getName() : answer.answer(call)));
    }

    private Object store(InvocationOnMock call) throws Exception {
        switch (call.getMethod().getName()) {
            case "getMaxOffsetInQueue":
                return api().getMaxOffset(address, queue(call), MILLIS_MAX);
            case "getMinOffsetInQueue":
                return api().getMinOffset(address, queue(call), MILLIS_MAX);
            case "dispatchBehindBytes":
                return 0L;
            default:
                throw needsEmbedding(call.getMethod().getName());
        }
    }

    private MessageQueue queue(InvocationOnMock call) {
        return new MessageQueue(call.getArgument(0), name, call.<Integer>getArgument(1));
    }

    private Object offsets(InvocationOnMock call) throws Exception {
        String group = call.getArgument(0);
        String topic = call.getArgument(1);
        OffsetWrapper found = api().getConsumeStats(address, group, topic, MILLIS_MAX)
            .getOffsetTable()
            .get(new MessageQueue(topic, name, call.<Integer>getArgument(2)));
        switch (call.getMethod().getName()) {
            case "queryOffset":
                return found == null ? -1L : found.getConsumerOffset();
            case "queryPullOffset":
                return found == null ? -1L : found.getPullOffset();
            default:
                throw needsEmbedding(call.getMethod().getName());
        }
    }

    private Object topics(InvocationOnMock call) throws Exception {
        if (!call.getMethod().getName().equals("getTopicConfigTable")) {
            throw needsEmbedding(call.getMethod().getName());
        }
        return new ConcurrentHashMap<>(
            api().getAllTopicConfig(address, MILLIS_MAX).getTopicConfigTable());
    }

    private static synchronized MQClientAPIImpl api() throws Exception {
        if (admin == null) {
            DefaultMQAdminExt starting = new DefaultMQAdminExt(MILLIS_MAX);
            starting.setInstanceName("RemoteBroker");
            starting.setNamesrvAddr(BaseConf.NAMESRV_ADDR);
            starting.start();
            admin = starting;
        }
        return admin.getDefaultMQAdminExtImpl().getMqClientInstance().getMQClientAPIImpl();
    }
}
