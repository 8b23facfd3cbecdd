// Conversations of Pulsar's Go client: peer SERVICE_URL TOPIC_PREFIX
//
// Each step has a topic of its own, PREFIX-STEP, and ends with one line of JSON, what it saw;
// test_clients.py compares. PREFIX-partitions has three partitions before this starts.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

const (
	// Patience for a machine that is very busy; nothing waits so long if all is well.
	receiveMax = 60 * time.Second
	// How long nothing has to come before nothing is believed to come.
	quiet = 300 * time.Millisecond
	soon  = 20 * time.Millisecond
)

type facts map[string]any

var (
	client pulsar.Client
	prefix string
)

func main() {
	quietLog := logrus.New()
	quietLog.SetOutput(io.Discard)
	var err error
	client, err = pulsar.NewClient(pulsar.ClientOptions{
		URL:              os.Args[1],
		OperationTimeout: receiveMax,
		Logger:           log.NewLoggerWithLogrus(quietLog),
	})
	must(err)
	defer client.Close()
	prefix = os.Args[2]
	steps := []struct {
		name string
		run  func(topic string) facts
	}{
		{"produce", produce}, {"batches", batches}, {"chunks", chunks}, {"exclusive", exclusive},
		{"shared", shared}, {"retry", retry}, {"failover", failover}, {"key_shared", keyShared},
		{"seek", seek}, {"reader", reader}, {"partitions", partitions}, {"pattern", pattern},
		{"schema", schema},
	}
	for _, step := range steps {
		seen := step.run(prefix + "-" + step.name)
		seen["step"] = step.name
		line, err := json.Marshal(seen)
		must(err)
		fmt.Println(string(line))
	}
}

func produce(topic string) facts {
	producer := alone(topic)
	defer producer.Close()
	consumer := subscribe(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Exclusive})
	same := true
	var ids []pulsar.MessageID
	for number := range 20 {
		id, err := producer.Send(context.Background(), &pulsar.ProducerMessage{
			Payload: []byte(fmt.Sprint(number)), Key: fmt.Sprintf("key-%d", number),
			Properties: map[string]string{"number": fmt.Sprint(number)},
			EventTime:  time.UnixMilli(1_700_000_000_000 + int64(number)),
		})
		must(err)
		ids = append(ids, id)
	}
	seen := receive(consumer, 20)
	for at, message := range seen {
		same = same && message.ID().LedgerID() == ids[at].LedgerID() &&
			message.ID().EntryID() == ids[at].EntryID()
	}
	must(consumer.AckCumulative(seen[19]))
	consumer.Close()
	consumer = subscribe(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Exclusive})
	defer consumer.Close()
	last := seen[19]
	return facts{
		"bodies": bodies(seen), "key": last.Key(), "property": last.Properties()["number"],
		"event_time": last.EventTime().UnixMilli(), "same_ids": same,
		"left": bodies(receiveRest(consumer)),
	}
}

func batches(topic string) facts {
	for _, compression := range []pulsar.CompressionType{pulsar.NoCompression, pulsar.LZ4, pulsar.ZSTD} {
		producer := batching(topic, compression, pulsar.DefaultBatchBuilder)
		send(producer, 0, 10)
		producer.Close()
	}
	options := pulsar.ConsumerOptions{
		Topic: topic, Type: pulsar.Shared, EnableBatchIndexAcknowledgment: true, AckWithResponse: true,
	}
	consumer := subscribe(options)
	seen := receive(consumer, 30)
	entries := map[int64]bool{}
	for _, message := range seen {
		entries[message.ID().EntryID()] = true
		// Of each batch every message but the last two.
		if message.ID().BatchIdx() < 8 {
			must(consumer.Ack(message))
		}
	}
	consumer.Close()
	consumer = subscribe(options)
	defer consumer.Close()
	left := append(receive(consumer, 6), receiveRest(consumer)...)
	return facts{"bodies": bodies(seen), "entries": len(entries), "left": bodies(left)}
}

func chunks(topic string) facts {
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, DisableBatching: true, EnableChunking: true, ChunkMaxMessageSize: 100_000,
	})
	must(err)
	defer producer.Close()
	large := make([]byte, 300_000)
	for at := range large {
		large[at] = byte(at % 251)
	}
	consumer := subscribe(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Exclusive})
	defer consumer.Close()
	_, err = producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: large})
	must(err)
	whole := receive(consumer, 1)[0]
	must(consumer.Ack(whole))
	return facts{"size": len(whole.Payload()), "same": slices.Equal(large, whole.Payload())}
}

func exclusive(topic string) facts {
	consumer := subscribe(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Exclusive})
	defer consumer.Close()
	_, err := client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "s"})
	refused := ""
	if err != nil && strings.Contains(err.Error(), "ConsumerBusy") {
		refused = "ConsumerBusy"
	}
	return facts{"refused": refused}
}

func shared(topic string) facts {
	options := pulsar.ConsumerOptions{
		Topic: topic, Type: pulsar.Shared, ReceiverQueueSize: 10,
		NackRedeliveryDelay: 50 * time.Millisecond,
	}
	first, second := subscribe(options), subscribe(options)
	defer first.Close()
	defer second.Close()
	producer := alone(topic)
	defer producer.Close()
	send(producer, 0, 20)
	firsts, seconds := receive(first, 10), receive(second, 10)
	for _, message := range firsts {
		must(first.Ack(message))
	}
	for _, message := range seconds {
		second.Nack(message)
	}
	var again []pulsar.Message
	counts := map[uint32]bool{}
	for len(again) < 10 {
		for _, consumer := range []pulsar.Consumer{first, second} {
			if message := receiveWithin(consumer, 20*time.Millisecond); message != nil {
				again = append(again, message)
				counts[message.RedeliveryCount()] = true
				must(consumer.Ack(message))
			}
		}
	}
	found := bodies(again)
	slices.Sort(found)
	var distinct []uint32
	for count := range counts {
		distinct = append(distinct, count)
	}
	return facts{"first": bodies(firsts), "second": bodies(seconds), "again": found, "counts": distinct}
}

func retry(topic string) facts {
	letters := subscribe(pulsar.ConsumerOptions{Topic: topic + "-s-DLQ", Type: pulsar.Shared})
	defer letters.Close()
	consumer := subscribe(pulsar.ConsumerOptions{
		Topic: topic, Type: pulsar.Shared, RetryEnable: true, DLQ: &pulsar.DLQPolicy{MaxDeliveries: 2},
	})
	defer consumer.Close()
	producer := alone(topic)
	defer producer.Close()
	_, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte("unwanted")})
	must(err)
	tries := []string{}
	for range 3 {
		message := receive(consumer, 1)[0]
		times := message.Properties()["RECONSUMETIMES"]
		if times == "" {
			times = "0"
		}
		tries = append(tries, times)
		consumer.ReconsumeLater(message, time.Millisecond)
	}
	letter := receive(letters, 1)[0]
	return facts{
		"tries": tries, "letter": string(letter.Payload()), "is_from": letter.Properties()["REAL_TOPIC"],
		"left": bodies(receiveRest(consumer)),
	}
}

func failover(topic string) facts {
	// The client has no priorities for failover; names decide, on a ring or by partition.
	first := subscribe(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Failover, Name: "a"})
	producer := alone(topic)
	defer producer.Close()
	send(producer, 0, 5)
	before := receive(first, 5)
	must(first.AckCumulative(before[1]))
	first.Close()
	second := subscribe(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Failover, Name: "b"})
	defer second.Close()
	return facts{"first": bodies(before), "second": bodies(receive(second, 3))}
}

func keyShared(topic string) facts {
	options := pulsar.ConsumerOptions{Topic: topic, Type: pulsar.KeyShared}
	first, second := subscribe(options), subscribe(options)
	defer first.Close()
	defer second.Close()
	producer := batching(topic, pulsar.NoCompression, pulsar.KeyBasedBatchBuilder)
	defer producer.Close()
	for number := range 60 {
		producer.SendAsync(context.Background(), &pulsar.ProducerMessage{
			Payload: []byte(fmt.Sprint(number)), Key: fmt.Sprintf("key-%d", number%12),
		}, sent)
	}
	must(producer.Flush())
	firsts, seconds := map[string][]string{}, map[string][]string{}
	take := func(consumer pulsar.Consumer, seen map[string][]string) (count int) {
		for message := receiveWithin(consumer, soon); message != nil; message = receiveWithin(consumer, soon) {
			seen[message.Key()] = append(seen[message.Key()], string(message.Payload()))
			must(consumer.Ack(message))
			count++
		}
		return count
	}
	for got := 0; got < 60; {
		got += take(first, firsts) + take(second, seconds)
	}
	left := len(receiveRest(first)) + len(receiveRest(second))
	return facts{"first": firsts, "second": seconds, "left": left}
}

func seek(topic string) facts {
	producer := alone(topic)
	defer producer.Close()
	consumer := subscribe(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Exclusive})
	defer consumer.Close()
	ids := send(producer, 0, 5)
	time.Sleep(20 * time.Millisecond)
	between := time.Now()
	time.Sleep(20 * time.Millisecond)
	ids = append(ids, send(producer, 5, 10)...)
	must(consumer.AckCumulative(receive(consumer, 10)[9]))
	// In this order: a seek by time leaves the start of an earlier one by id in the client.
	must(consumer.SeekByTime(between))
	byTime := bodies(receive(consumer, 5))
	must(consumer.Seek(ids[7]))
	byID := bodies(receive(consumer, 2))
	// Its own words for both ends have no partition, which Seek asks for.
	must(consumer.Seek(pulsar.NewMessageID(-1, -1, -1, 0)))
	earliest := bodies(receive(consumer, 10))
	must(consumer.Seek(pulsar.NewMessageID(math.MaxInt64, math.MaxInt64, -1, 0)))
	send(producer, 10, 11)
	return facts{
		"by_id": byID, "by_time": byTime, "earliest": earliest, "latest": bodies(receive(consumer, 1)),
	}
}

func reader(topic string) facts {
	producer := alone(topic)
	ids := send(producer, 0, 10)
	producer.Close()
	read := func(start pulsar.MessageID, isInclusive bool) []string {
		reader, err := client.CreateReader(pulsar.ReaderOptions{
			Topic: topic, StartMessageID: start, StartMessageIDInclusive: isInclusive,
		})
		must(err)
		defer reader.Close()
		seen := []string{}
		for reader.HasNext() {
			limited, cancel := context.WithTimeout(context.Background(), receiveMax)
			message, err := reader.Next(limited)
			cancel()
			must(err)
			seen = append(seen, string(message.Payload()))
		}
		return seen
	}
	seen := facts{
		"all": read(pulsar.EarliestMessageID(), false), "behind": read(ids[5], false),
		"from": read(ids[5], true), "none": read(pulsar.LatestMessageID(), false),
	}
	consumer := subscribe(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Exclusive})
	defer consumer.Close()
	last, err := consumer.GetLastMessageIDs()
	must(err)
	seen["last_is_last"] = last[0].LedgerID() == ids[9].LedgerID() && last[0].EntryID() == ids[9].EntryID()
	return seen
}

func partitions(topic string) facts {
	names, err := client.TopicPartitions(topic)
	must(err)
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, DisableBatching: true, HashingScheme: pulsar.Murmur3_32Hash,
	})
	must(err)
	defer producer.Close()
	consumer := subscribe(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared})
	defer consumer.Close()
	for number := range 60 {
		producer.SendAsync(context.Background(), &pulsar.ProducerMessage{
			Payload: []byte(fmt.Sprint(number)), Key: fmt.Sprintf("key-%d", number%30),
		}, sent)
	}
	must(producer.Flush())
	byPartition := map[string][]string{}
	for _, message := range receive(consumer, 60) {
		name := message.Topic()[strings.LastIndex(message.Topic(), "-")+1:]
		byPartition[name] = append(byPartition[name], string(message.Payload()))
		must(consumer.Ack(message))
	}
	return facts{"count": len(names), "by_partition": byPartition}
}

func pattern(topic string) facts {
	for _, name := range []string{"pattern-a", "pattern-b"} {
		producer := alone(prefix + "-" + name)
		_, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte(name)})
		must(err)
		producer.Close()
	}
	consumer := subscribe(pulsar.ConsumerOptions{TopicsPattern: topic + "-.*", Type: pulsar.Exclusive})
	defer consumer.Close()
	seen := bodies(receive(consumer, 2))
	slices.Sort(seen)
	return facts{"bodies": seen}
}

type order struct {
	Item   string `json:"item"`
	Pieces int    `json:"pieces"`
}

func schema(topic string) facts {
	definition := pulsar.NewJSONSchema(`{"type":"record","name":"Order","fields":[`+
		`{"name":"item","type":"string"},{"name":"pieces","type":"int"}]}`, nil)
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic, Schema: definition})
	must(err)
	defer producer.Close()
	consumer := subscribe(pulsar.ConsumerOptions{Topic: topic, Schema: definition})
	defer consumer.Close()
	_, err = producer.Send(context.Background(), &pulsar.ProducerMessage{Value: &order{"pen", 3}})
	must(err)
	message := receive(consumer, 1)[0]
	var seen order
	must(message.GetSchemaValue(&seen))
	version := []string{}
	for _, each := range message.SchemaVersion() {
		version = append(version, fmt.Sprint(each))
	}
	refused := ""
	if _, err = client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, Schema: pulsar.NewInt32Schema(nil),
	}); err != nil && strings.Contains(err.Error(), "IncompatibleSchema") {
		refused = "IncompatibleSchema"
	}
	return facts{"item": seen.Item, "pieces": seen.Pieces, "version": version, "refused": refused}
}

// ---- tools

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func sent(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { must(err) }

func alone(topic string) pulsar.Producer {
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	must(err)
	return producer
}

// Ten messages a batch; no batch leaves because of the time.
func batching(topic string, compression pulsar.CompressionType, by pulsar.BatcherBuilderType) pulsar.Producer {
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, CompressionType: compression, BatchingMaxMessages: 10,
		BatchingMaxPublishDelay: receiveMax, BatcherBuilderType: by,
	})
	must(err)
	return producer
}

func subscribe(options pulsar.ConsumerOptions) pulsar.Consumer {
	options.SubscriptionName = "s"
	options.SubscriptionInitialPosition = pulsar.SubscriptionPositionEarliest
	consumer, err := client.Subscribe(options)
	must(err)
	return consumer
}

func send(producer pulsar.Producer, from, to int) []pulsar.MessageID {
	answers := make(chan pulsar.MessageID, to-from)
	for number := from; number < to; number++ {
		producer.SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(number))},
			func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				must(err)
				answers <- id
			})
	}
	must(producer.Flush())
	var ids []pulsar.MessageID
	for range to - from {
		ids = append(ids, <-answers)
	}
	return ids
}

func receiveWithin(consumer pulsar.Consumer, limit time.Duration) pulsar.Message {
	limited, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	message, err := consumer.Receive(limited)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	must(err)
	return message
}

func receive(consumer pulsar.Consumer, count int) []pulsar.Message {
	seen := []pulsar.Message{}
	for len(seen) < count {
		message := receiveWithin(consumer, receiveMax)
		if message == nil {
			panic(fmt.Sprintf("%v, not %d", bodies(seen), count))
		}
		seen = append(seen, message)
	}
	return seen
}

// Everything until nothing comes for a while.
func receiveRest(consumer pulsar.Consumer) []pulsar.Message {
	seen := []pulsar.Message{}
	for message := receiveWithin(consumer, quiet); message != nil; message = receiveWithin(consumer, quiet) {
		seen = append(seen, message)
	}
	return seen
}

func bodies(messages []pulsar.Message) []string {
	found := []string{}
	for _, message := range messages {
		found = append(found, string(message.Payload()))
	}
	return found
}
