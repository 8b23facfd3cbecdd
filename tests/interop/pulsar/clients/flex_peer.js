// Conversations of pulsar-flex: node flex_peer.js SERVICE_URL TOPIC_PREFIX
// Each step has a topic of its own, PREFIX-STEP, and ends with one line of JSON, what it saw;
// test_clients.py compares. This client has no keys, readers, seeks or partitions, subscribes at the
// end of a topic whatever it is told, asks for a receipt of every ack, and looks for messages once a
// second.
'use strict';
const { Producer, Consumer } = require('pulsar-flex');

const [url, prefix] = process.argv.slice(2);
const discoveryServers = [url.replace('pulsar://', '')];
const QUIET_MS = 1200;
const silent = () => () => {};
const { ACK_TYPES, SUB_TYPES } = Consumer;

const topicOf = (step) => `${prefix}-${step}`;

async function producerOf(topic) {
  const producer = new Producer({ topic, discoveryServers, logCreator: silent });
  await producer.create();
  return producer;
}

// A consumer that keeps what it hears; `judge` says what becomes of a message.
async function consumerOf(topic, subType, consumerName, judge = ({ ack }) => ack()) {
  const consumer = new Consumer({
    topic, subscription: 's', subType, consumerName, discoveryServers, receiveQueueSize: 20, logCreator: silent,
  });
  const seen = [];
  let waiting = null;
  await consumer.subscribe();
  const heard = (count) => new Promise((resolve) => {
    waiting = { count, resolve };
    if (seen.length >= count) resolve(seen.slice());
  });
  const run = () => consumer.run({
    autoAck: false,
    onMessage: async (event) => {
      seen.push({
        body: event.message.toString(), count: event.redeliveryCount, properties: event.properties,
        entry: event.command.messageId.entryid,
      });
      await judge(event, seen.length);
      if (waiting && seen.length >= waiting.count) waiting.resolve(seen.slice());
    },
  });
  return { consumer, seen, heard, run };
}

const bodies = (messages) => messages.map((each) => each.body);
const quiet = () => new Promise((resolve) => { setTimeout(resolve, QUIET_MS); });

async function sendAll(producer, from, to) {
  for (let number = from; number < to; number += 1) {
    await producer.sendMessage({ payload: String(number), properties: { number: String(number) } });
  }
}

const steps = {
  async produce(topic) {
    const { heard, run, consumer } = await consumerOf(topic, SUB_TYPES.EXCLUSIVE, 'a');
    const producer = await producerOf(topic);
    await sendAll(producer, 0, 20);
    await run();
    const seen = await heard(20);
    await consumer.unsubscribe();
    await producer.close();
    return { bodies: bodies(seen), property: seen[19].properties.number };
  },

  async batches(topic) {
    const { heard, run } = await consumerOf(topic, SUB_TYPES.SHARED, 'a');
    const producer = await producerOf(topic);
    for (const first of [0, 10, 20]) {
      const numbers = Array.from({ length: 10 }, (_, at) => String(first + at));
      await producer.sendBatch({ messages: numbers.map((each) => ({ payload: each, properties: { each } })) });
    }
    await run();
    const seen = await heard(30);
    return {
      bodies: bodies(seen), properties: seen.map((each) => each.properties.each),
      entries: new Set(seen.map((each) => each.entry)).size,
    };
  },

  async exclusive(topic) {
    await consumerOf(topic, SUB_TYPES.EXCLUSIVE, 'a');
    try {
      await consumerOf(topic, SUB_TYPES.EXCLUSIVE, 'b');
    } catch (error) {
      return { refused: error.name };
    }
    return { refused: '' };
  },

  async shared(topic) {
    // The first sends everything back that it hears for the first time.
    const judge = ({ ack, redeliveryCount }) => ack({ type: redeliveryCount ? ACK_TYPES.INDIVIDUAL : ACK_TYPES.NEGATIVE });
    const first = await consumerOf(topic, SUB_TYPES.SHARED, 'a', judge);
    const second = await consumerOf(topic, SUB_TYPES.SHARED, 'b');
    const producer = await producerOf(topic);
    await Promise.all([first.run(), second.run()]);
    await sendAll(producer, 0, 20);
    for (let done = 0; done < 20;) {
      await quiet();
      done = second.seen.length + first.seen.filter((each) => each.count).length;
    }
    return { first: first.seen, second: second.seen };
  },

  async failover(topic) {
    const unsettled = ({ ack }, number) => (number === 4 ? ack({ type: ACK_TYPES.CUMULATIVE }) : undefined);
    const first = await consumerOf(topic, SUB_TYPES.FAILOVER, 'a', unsettled);
    await first.run();
    const producer = await producerOf(topic);
    await sendAll(producer, 0, 10);
    const before = await first.heard(10);
    const second = await consumerOf(topic, SUB_TYPES.FAILOVER, 'b');
    await second.run();
    first.consumer._setState(Consumer.CONSUMER_STATES.UNSUBSCRIBED);
    first.consumer._client.getCnx().close();
    return { first: bodies(before), second: bodies(await second.heard(6)) };
  },

  async key_shared(topic) {
    // Without keys each message goes by its producer's name and its number.
    const first = await consumerOf(topic, SUB_TYPES.KEY_SHARED, 'a');
    const second = await consumerOf(topic, SUB_TYPES.KEY_SHARED, 'b');
    await Promise.all([first.run(), second.run()]);
    await sendAll(await producerOf(topic), 0, 40);
    while (first.seen.length + second.seen.length < 40) await quiet();
    return { first: bodies(first.seen), second: bodies(second.seen) };
  },
};

(async () => {
  // At once: each mostly waits for the client's own second.
  await Promise.all(Object.entries(steps).map(async ([step, run]) => {
    console.log(JSON.stringify({ step, ...await run(topicOf(step)) }));
  }));
  process.exit(0);
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
