import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.HashingScheme;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * Conversations of Pulsar's Java client: java JavaPeer SERVICE_URL TOPIC_PREFIX ADMIN_URL
 *
 * <p>Each step has a topic of its own, PREFIX-STEP, and ends with one line of JSON, what it saw;
 * test_clients.py compares. PREFIX-partitions has three partitions before this starts.
 */
public final class JavaPeer {
    /** Patience for a machine that is very busy; nothing waits so long if all is well. */
    private static final int RECEIVE_SECONDS_MAX = 60;
    /** How long nothing has to come before nothing is believed to come. */
    private static final int QUIET_MS = 300;

    private final PulsarClient client;
    private final String prefix;
    private final String admin;

    private JavaPeer(PulsarClient client, String prefix, String admin) {
        this.client = client;
        this.prefix = prefix;
        this.admin = admin;
    }

    public static void main(String[] arguments) throws Exception {
        PulsarClient client = PulsarClient.builder()
                .serviceUrl(arguments[0])
                .operationTimeout(RECEIVE_SECONDS_MAX, TimeUnit.SECONDS)
                .build();
        JavaPeer peer = new JavaPeer(client, arguments[1], arguments[2]);
        int code = 1;
        try {
            peer.produce();
            peer.batches();
            peer.chunks();
            peer.exclusive();
            peer.shared();
            peer.retry();
            peer.failover();
            peer.keyShared();
            peer.seek();
            peer.reader();
            peer.partitions();
            peer.pattern();
            peer.schema();
            peer.compacted();
            code = 0;
        } catch (Exception problem) {
            problem.printStackTrace();
        }
        // To close the client takes three seconds, all of them waits of its own.
        System.exit(code);
    }

    private void produce() throws Exception {
        String topic = topic("produce");
        List<Message<byte[]>> seen;
        List<MessageId> receipts = new ArrayList<>();
        try (Producer<byte[]> producer = alone(topic).create();
                Consumer<byte[]> consumer = consumer(topic, SubscriptionType.Exclusive).subscribe()) {
            for (int number = 0; number < 20; number++) {
                receipts.add(producer.newMessage().key("key-" + number).property("number", "" + number)
                        .eventTime(1_700_000_000_000L + number).value(bytes("" + number)).send());
            }
            seen = receive(consumer, 20);
            consumer.acknowledgeCumulative(seen.get(19));
        }
        List<Message<byte[]>> left;
        try (Consumer<byte[]> consumer = consumer(topic, SubscriptionType.Exclusive).subscribe()) {
            left = receiveRest(consumer);
        }
        Message<byte[]> last = seen.get(19);
        tell("produce", "bodies", bodies(seen), "key", last.getKey(), "property",
                last.getProperty("number"), "event_time", last.getEventTime(),
                "same_ids", idsOf(seen).equals(receipts), "left", bodies(left));
    }

    private void batches() throws Exception {
        String topic = topic("batches");
        List<Message<byte[]>> seen;
        List<Message<byte[]>> left;
        for (CompressionType compression : List.of(CompressionType.NONE, CompressionType.LZ4,
                CompressionType.ZSTD)) {
            try (Producer<byte[]> producer = batching(topic).compressionType(compression).create()) {
                send(producer, 0, 10);
            }
        }
        try (Consumer<byte[]> consumer = consumer(topic, SubscriptionType.Shared)
                .enableBatchIndexAcknowledgment(true).isAckReceiptEnabled(true).subscribe()) {
            seen = receive(consumer, 30);
            // Of each batch every message but the last two.
            List<CompletableFuture<Void>> acks = new ArrayList<>();
            for (Message<byte[]> message : seen) {
                if (((MessageIdAdv) message.getMessageId()).getBatchIndex() < 8) {
                    acks.add(consumer.acknowledgeAsync(message));
                }
            }
            for (CompletableFuture<Void> each : acks) {
                each.get(RECEIVE_SECONDS_MAX, TimeUnit.SECONDS);
            }
        }
        try (Consumer<byte[]> consumer = consumer(topic, SubscriptionType.Shared)
                .enableBatchIndexAcknowledgment(true).subscribe()) {
            left = receive(consumer, 6);
            left.addAll(receiveRest(consumer));
        }
        long entries = seen.stream().map(each -> ((MessageIdAdv) each.getMessageId()).getEntryId())
                .distinct().count();
        tell("batches", "bodies", bodies(seen), "entries", entries, "left", bodies(left));
    }

    private void chunks() throws Exception {
        String topic = topic("chunks");
        byte[] large = new byte[300_000];
        for (int at = 0; at < large.length; at++) {
            large[at] = (byte) (at % 251);
        }
        try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false)
                        .enableChunking(true).chunkMaxMessageSize(100_000).create();
                Consumer<byte[]> consumer = consumer(topic, SubscriptionType.Exclusive).subscribe()) {
            producer.send(large);
            Message<byte[]> whole = receive(consumer, 1).get(0);
            consumer.acknowledge(whole);
            tell("chunks", "size", whole.getData().length, "same", Arrays.equals(large, whole.getData()));
        }
    }

    private void exclusive() throws Exception {
        String topic = topic("exclusive");
        String refused = "";
        try (Consumer<byte[]> first = consumer(topic, SubscriptionType.Exclusive).subscribe()) {
            consumer(topic, SubscriptionType.Exclusive).subscribe().close();
        } catch (PulsarClientException.ConsumerBusyException busy) {
            refused = "ConsumerBusy";
        }
        tell("exclusive", "refused", refused);
    }

    private void shared() throws Exception {
        String topic = topic("shared");
        ConsumerBuilder<byte[]> builder = consumer(topic, SubscriptionType.Shared)
                .receiverQueueSize(10).negativeAckRedeliveryDelay(50, TimeUnit.MILLISECONDS);
        try (Consumer<byte[]> first = builder.clone().subscribe();
                Consumer<byte[]> second = builder.clone().subscribe();
                Producer<byte[]> producer = alone(topic).create()) {
            send(producer, 0, 20);
            List<Message<byte[]>> firsts = receive(first, 10);
            List<Message<byte[]>> seconds = receive(second, 10);
            for (Message<byte[]> message : firsts) {
                first.acknowledge(message);
            }
            for (Message<byte[]> message : seconds) {
                second.negativeAcknowledge(message);
            }
            List<Message<byte[]>> again = new ArrayList<>();
            while (again.size() < 10) {
                for (Consumer<byte[]> consumer : List.of(first, second)) {
                    Message<byte[]> message = consumer.receive(20, TimeUnit.MILLISECONDS);
                    if (message != null) {
                        again.add(message);
                        consumer.acknowledge(message);
                    }
                }
            }
            tell("shared", "first", bodies(firsts), "second", bodies(seconds),
                    "again", bodies(again).stream().sorted().collect(Collectors.toList()),
                    "counts", again.stream().map(Message::getRedeliveryCount).distinct()
                            .collect(Collectors.toList()));
        }
    }

    private void retry() throws Exception {
        String topic = topic("retry");
        List<String> tries = new ArrayList<>();
        try (Consumer<byte[]> letters = consumer(topic + "-s-DLQ", SubscriptionType.Shared).subscribe();
                Consumer<byte[]> consumer = consumer(topic, SubscriptionType.Shared).enableRetry(true)
                        .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(2).build()).subscribe();
                Producer<byte[]> producer = alone(topic).create()) {
            producer.send(bytes("unwanted"));
            for (int time = 0; time < 3; time++) {
                Message<byte[]> message = receive(consumer, 1).get(0);
                tries.add(message.getProperties().getOrDefault("RECONSUMETIMES", "0"));
                consumer.reconsumeLater(message, 1, TimeUnit.MILLISECONDS);
            }
            Message<byte[]> letter = receive(letters, 1).get(0);
            tell("retry", "tries", tries, "letter", text(letter), "is_from", letter.getProperty("REAL_TOPIC"),
                    "left", bodies(receiveRest(consumer)));
        }
    }

    private void failover() throws Exception {
        String topic = topic("failover");
        List<Message<byte[]>> before;
        List<Message<byte[]>> after;
        List<Message<byte[]>> waiting;
        Consumer<byte[]> first = consumer(topic, SubscriptionType.Failover).consumerName("a")
                .priorityLevel(0).subscribe();
        try (Consumer<byte[]> second = consumer(topic, SubscriptionType.Failover).consumerName("b")
                        .priorityLevel(1).subscribe();
                Producer<byte[]> producer = alone(topic).create()) {
            send(producer, 0, 10);
            before = receive(first, 10);
            waiting = receiveRest(second);
            first.acknowledgeCumulative(before.get(3));
            first.close();
            after = receive(second, 6);
        }
        tell("failover", "first", bodies(before), "second_meanwhile", bodies(waiting),
                "second", bodies(after));
    }

    private void keyShared() throws Exception {
        String topic = topic("keys");
        try (Consumer<byte[]> first = consumer(topic, SubscriptionType.Key_Shared).subscribe();
                Consumer<byte[]> second = consumer(topic, SubscriptionType.Key_Shared).subscribe();
                Producer<byte[]> producer = batching(topic).batcherBuilder(BatcherBuilder.KEY_BASED)
                        .create()) {
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (int number = 0; number < 60; number++) {
                sent.add(producer.newMessage().key("key-" + number % 12).value(bytes("" + number))
                        .sendAsync());
            }
            producer.flush();
            for (CompletableFuture<MessageId> each : sent) {
                each.get(RECEIVE_SECONDS_MAX, TimeUnit.SECONDS);
            }
            Map<String, List<String>> firsts = new LinkedHashMap<>();
            Map<String, List<String>> seconds = new LinkedHashMap<>();
            for (int got = 0; got < 60;) {
                got += takeByKey(first, firsts) + takeByKey(second, seconds);
            }
            tell("key_shared", "first", firsts, "second", seconds,
                    "left", bodies(receiveRest(first)).size() + bodies(receiveRest(second)).size());
        }
    }

    /** What is there now, acked; how many. */
    private static int takeByKey(Consumer<byte[]> consumer, Map<String, List<String>> seen) throws Exception {
        int count = 0;
        for (Message<byte[]> message = consumer.receive(20, TimeUnit.MILLISECONDS); message != null;
                message = consumer.receive(20, TimeUnit.MILLISECONDS)) {
            seen.computeIfAbsent(message.getKey(), each -> new ArrayList<>()).add(text(message));
            consumer.acknowledge(message);
            count++;
        }
        return count;
    }

    private void seek() throws Exception {
        String topic = topic("seek");
        try (Producer<byte[]> producer = alone(topic).create();
                Consumer<byte[]> consumer = consumer(topic, SubscriptionType.Exclusive).subscribe()) {
            List<MessageId> ids = send(producer, 0, 5);
            TimeUnit.MILLISECONDS.sleep(20);
            long between = System.currentTimeMillis();
            TimeUnit.MILLISECONDS.sleep(20);
            ids.addAll(send(producer, 5, 10));
            consumer.acknowledgeCumulative(receive(consumer, 10).get(9));
            consumer.seek(ids.get(7));
            List<String> byId = bodies(receive(consumer, 2));
            consumer.seek(between);
            List<String> byTime = bodies(receive(consumer, 5));
            consumer.seek(MessageId.earliest);
            List<String> earliest = bodies(receive(consumer, 10));
            consumer.seek(MessageId.latest);
            send(producer, 10, 11);
            tell("seek", "by_id", byId, "by_time", byTime, "earliest", earliest,
                    "latest", bodies(receive(consumer, 1)));
        }
    }

    private void reader() throws Exception {
        String topic = topic("reader");
        List<MessageId> ids;
        try (Producer<byte[]> producer = alone(topic).create()) {
            ids = send(producer, 0, 10);
        }
        List<String> all = read(topic, MessageId.earliest, false);
        List<String> behind = read(topic, ids.get(5), false);
        List<String> from = read(topic, ids.get(5), true);
        List<String> none = read(topic, MessageId.latest, false);
        MessageId last;
        try (Consumer<byte[]> consumer = consumer(topic, SubscriptionType.Exclusive).subscribe()) {
            last = consumer.getLastMessageIds().get(0);
        }
        tell("reader", "all", all, "behind", behind, "from", from, "none", none,
                "last_is_last", ((MessageIdAdv) last).compareTo(ids.get(9)) == 0);
    }

    private List<String> read(String topic, MessageId start, boolean isInclusive) throws Exception {
        var builder = client.newReader().topic(topic).startMessageId(start);
        List<String> seen = new ArrayList<>();
        try (Reader<byte[]> reader = (isInclusive ? builder.startMessageIdInclusive() : builder).create()) {
            while (reader.hasMessageAvailable()) {
                Message<byte[]> message = reader.readNext(RECEIVE_SECONDS_MAX, TimeUnit.SECONDS);
                seen.add(text(message));
            }
        }
        return seen;
    }

    private void partitions() throws Exception {
        String topic = topic("partitions");
        int count = client.getPartitionsForTopic(topic).get(RECEIVE_SECONDS_MAX, TimeUnit.SECONDS).size();
        Map<String, List<String>> byPartition = new LinkedHashMap<>();
        try (Producer<byte[]> producer = alone(topic).hashingScheme(HashingScheme.Murmur3_32Hash).create();
                Consumer<byte[]> consumer = consumer(topic, SubscriptionType.Shared).subscribe()) {
            for (int number = 0; number < 60; number++) {
                producer.newMessage().key("key-" + number % 30).value(bytes("" + number)).sendAsync();
            }
            producer.flush();
            for (Message<byte[]> message : receive(consumer, 60)) {
                String name = message.getTopicName();
                byPartition.computeIfAbsent(name.substring(name.lastIndexOf('-') + 1),
                        each -> new ArrayList<>()).add(text(message));
                consumer.acknowledge(message);
            }
        }
        tell("partitions", "count", count, "by_partition", byPartition);
    }

    private void pattern() throws Exception {
        for (String name : List.of("pattern-a", "pattern-b")) {
            try (Producer<byte[]> producer = alone(topic(name)).create()) {
                producer.send(bytes(name));
            }
        }
        try (Consumer<byte[]> consumer = client.newConsumer().topicsPattern(topic("pattern-.*"))
                .subscriptionName("s").subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                // It does not find out by asking.
                .patternAutoDiscoveryPeriod(1, TimeUnit.HOURS)
                .subscribe()) {
            List<String> seen = bodies(receive(consumer, 2));
            // A topic that is made now: the broker tells whoever watches.
            try (Producer<byte[]> producer = alone(topic("pattern-c")).create()) {
                producer.send(bytes("pattern-c"));
            }
            seen.addAll(bodies(receive(consumer, 1)));
            tell("pattern", "bodies", seen.stream().sorted().collect(Collectors.toList()));
        }
    }

    /** Without fields that are public, none would be in the schema. */
    public static final class Order {
        public String item;
        public int pieces;
    }

    private void schema() throws Exception {
        String topic = topic("schema");
        String refused = "";
        Order order = new Order();
        order.item = "pen";
        order.pieces = 3;
        try (Producer<Order> producer = client.newProducer(Schema.JSON(Order.class)).topic(topic).create();
                Consumer<Order> consumer = client.newConsumer(Schema.JSON(Order.class)).topic(topic)
                        .subscriptionName("s").subscribe()) {
            producer.send(order);
            Message<Order> seen = consumer.receive(RECEIVE_SECONDS_MAX, TimeUnit.SECONDS);
            try {
                client.newProducer(Schema.INT32).topic(topic).create().close();
            } catch (PulsarClientException.IncompatibleSchemaException incompatible) {
                refused = "IncompatibleSchema";
            }
            tell("schema", "item", seen.getValue().item, "pieces", seen.getValue().pieces,
                    "version", IntStream.range(0, seen.getSchemaVersion().length)
                            .mapToObj(at -> "" + seen.getSchemaVersion()[at]).collect(Collectors.toList()),
                    "refused", refused);
        }
    }

    private void compacted() throws Exception {
        String topic = topic("compacted");
        List<String> all = new ArrayList<>();
        List<String> newest = new ArrayList<>();
        List<String> tail = new ArrayList<>();
        try (Producer<byte[]> batches = batching(topic).create(); Producer<byte[]> single = alone(topic).create()) {
            // Two batches and two messages by themselves, of four keys: both survive in part.
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (int number = 0; number < 20; number++) {
                sent.add(batches.newMessage().key("key-" + number % 4).value(bytes("" + number)).sendAsync());
            }
            batches.flush();
            for (CompletableFuture<MessageId> each : sent) {
                each.get(RECEIVE_SECONDS_MAX, TimeUnit.SECONDS);
            }
            single.newMessage().key("key-1").value(bytes("20")).send();
            single.newMessage().key("key-1").value(bytes("21")).send();
            compact(topic);
            // The tail is read as it is.
            single.newMessage().key("key-2").value(bytes("22")).send();
            try (Reader<byte[]> reader = client.newReader().topic(topic).startMessageId(MessageId.earliest)
                    .readCompacted(true).create()) {
                while (reader.hasMessageAvailable()) {
                    Message<byte[]> message = reader.readNext(RECEIVE_SECONDS_MAX, TimeUnit.SECONDS);
                    newest.add(message.getKey() + "=" + text(message));
                }
            }
            ConsumerBuilder<byte[]> builder = consumer(topic, SubscriptionType.Exclusive).readCompacted(true);
            try (Consumer<byte[]> consumer = builder.clone().subscribe()) {
                List<Message<byte[]>> seen = receive(consumer, newest.size());
                consumer.acknowledgeCumulative(seen.get(seen.size() - 1));
            }
            // Acks of what was compacted hold for the tail, too.
            single.newMessage().key("key-3").value(bytes("23")).send();
            try (Consumer<byte[]> consumer = builder.clone().subscribe()) {
                tail.addAll(bodies(receive(consumer, 1)));
                tail.addAll(bodies(receiveRest(consumer)));
            }
            all.addAll(read(topic, MessageId.earliest, false));
        }
        tell("compacted", "newest", newest, "tail", tail, "all", all);
    }

    private void compact(String topic) throws Exception {
        URI place = URI.create(admin + "/admin/v2/" + topic.replace("://", "/") + "/compaction");
        HttpClient http = HttpClient.newHttpClient();
        HttpRequest begin = HttpRequest.newBuilder(place).PUT(HttpRequest.BodyPublishers.noBody()).build();
        http.send(begin, HttpResponse.BodyHandlers.discarding());
        HttpRequest ask = HttpRequest.newBuilder(place).GET().build();
        while (!http.send(ask, HttpResponse.BodyHandlers.ofString()).body().contains("SUCCESS")) {
            TimeUnit.MILLISECONDS.sleep(20);
        }
    }

    // ---- tools

    private String topic(String step) {
        return prefix + "-" + step;
    }

    private ProducerBuilder<byte[]> alone(String topic) {
        return client.newProducer().topic(topic).enableBatching(false);
    }

    /** Ten messages a batch; no batch leaves because of the time. */
    private ProducerBuilder<byte[]> batching(String topic) {
        return client.newProducer().topic(topic).enableBatching(true).batchingMaxMessages(10)
                .batchingMaxPublishDelay(RECEIVE_SECONDS_MAX, TimeUnit.SECONDS);
    }

    private ConsumerBuilder<byte[]> consumer(String topic, SubscriptionType type) {
        return client.newConsumer().topic(topic).subscriptionName("s").subscriptionType(type)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
    }

    private static List<MessageId> send(Producer<byte[]> producer, int from, int to) throws Exception {
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        for (int number = from; number < to; number++) {
            sent.add(producer.sendAsync(bytes("" + number)));
        }
        producer.flush();
        List<MessageId> ids = new ArrayList<>();
        for (CompletableFuture<MessageId> each : sent) {
            ids.add(each.get(RECEIVE_SECONDS_MAX, TimeUnit.SECONDS));
        }
        return ids;
    }

    private static List<Message<byte[]>> receive(Consumer<byte[]> consumer, int count) throws Exception {
        List<Message<byte[]>> seen = new ArrayList<>();
        while (seen.size() < count) {
            Message<byte[]> message = consumer.receive(RECEIVE_SECONDS_MAX, TimeUnit.SECONDS);
            if (message == null) {
                throw new IllegalStateException(consumer.getTopic() + ": " + bodies(seen) + ", not " + count);
            }
            seen.add(message);
        }
        return seen;
    }

    /** Everything until nothing comes for a while. */
    private static List<Message<byte[]>> receiveRest(Consumer<byte[]> consumer) throws Exception {
        List<Message<byte[]>> seen = new ArrayList<>();
        for (Message<byte[]> message = consumer.receive(QUIET_MS, TimeUnit.MILLISECONDS); message != null;
                message = consumer.receive(QUIET_MS, TimeUnit.MILLISECONDS)) {
            seen.add(message);
        }
        return seen;
    }

    private static List<MessageId> idsOf(List<Message<byte[]>> messages) {
        return messages.stream().map(Message::getMessageId).collect(Collectors.toList());
    }

    private static List<String> bodies(List<Message<byte[]>> messages) {
        return messages.stream().map(JavaPeer::text).collect(Collectors.toList());
    }

    private static String text(Message<byte[]> message) {
        return new String(message.getData(), StandardCharsets.UTF_8);
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    /** Names and values in turn, as one line of JSON. */
    private static void tell(String step, Object... facts) {
        StringBuilder line = new StringBuilder("{\"step\":" + json(step));
        for (int at = 0; at < facts.length; at += 2) {
            line.append(",").append(json(facts[at])).append(":").append(json(facts[at + 1]));
        }
        System.out.println(line.append("}"));
    }

    private static String json(Object value) {
        if (value instanceof List<?> list) {
            return list.stream().map(JavaPeer::json).collect(Collectors.joining(",", "[", "]"));
        }
        if (value instanceof Map<?, ?> map) {
            return map.entrySet().stream().map(each -> json(each.getKey()) + ":" + json(each.getValue()))
                    .collect(Collectors.joining(",", "{", "}"));
        }
        return value instanceof String text ? "\"" + text + "\"" : String.valueOf(value);
    }
}
