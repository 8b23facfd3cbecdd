// Conversations of amqplib, one per run: node amqplib_peer.js URL CONVERSATION NAME
// Each ends with one line of JSON, what it saw; test_amqplib.py compares.
'use strict';
const amqp = require('amqplib');

const bodies = (messages) => messages.map((each) => each.content.toString());

function collect(channel, queue, count, options) {
  return new Promise((resolve, reject) => {
    const seen = [];
    channel.consume(queue, (message) => {
      seen.push(message);
      if (!options) channel.ack(message);
      if (seen.length === count) resolve(seen);
    }, options).catch(reject);
  });
}

const conversations = {
  async confirms(connection, name) {
    const channel = await connection.createConfirmChannel();
    await channel.assertQueue(name, { durable: true });
    const returned = [];
    channel.on('return', (message) => returned.push(message.fields.replyText));
    for (let number = 0; number < 500; number += 1) {
      channel.sendToQueue(name, Buffer.from(String(number)), { persistent: true });
    }
    channel.publish('', `${name}-nobody`, Buffer.from('lost'), { mandatory: true });
    await channel.waitForConfirms();
    await channel.prefetch(50);
    const seen = await collect(channel, name, 500);
    const left = await channel.checkQueue(name);
    return { bodies: bodies(seen), returned, left: left.messageCount };
  },

  async headers(connection, name) {
    const channel = await connection.createChannel();
    await channel.assertExchange(name, 'headers', { autoDelete: true });
    const { queue } = await channel.assertQueue('', { exclusive: true });
    await channel.bindQueue(queue, name, '', { 'x-match': 'any', colour: 'red', size: 3 });
    const seen = collect(channel, queue, 2, { noAck: true });
    channel.publish(name, '', Buffer.from('no'), { headers: { colour: 'blue' } });
    channel.publish(name, '', Buffer.from('red'), { headers: { colour: 'red', deep: { a: [1, 2.5, null] } } });
    channel.publish(name, '', Buffer.from('size'), { headers: { size: 3 }, timestamp: 1700000000 });
    const found = await seen;
    return { bodies: bodies(found), deep: found[0].properties.headers.deep, at: found[1].properties.timestamp };
  },

  async deadLetters(connection, name) {
    const channel = await connection.createChannel();
    await channel.assertQueue(`${name}-dead`, { exclusive: true });
    await channel.assertQueue(name, {
      exclusive: true, deadLetterExchange: '', deadLetterRoutingKey: `${name}-dead`, maxLength: 1,
    });
    const seen = collect(channel, `${name}-dead`, 2, { noAck: true });
    channel.sendToQueue(name, Buffer.from('first'));
    channel.sendToQueue(name, Buffer.from('second'), { expiration: 30 });
    const found = await seen;
    return { bodies: bodies(found), reasons: found.map((each) => each.properties.headers['x-death'][0].reason) };
  },

  async errors(connection, name) {
    const channel = await connection.createChannel();
    const failed = new Promise((resolve) => channel.on('error', (error) => resolve(error.code)));
    await channel.checkQueue(name).catch(() => {});
    const other = await connection.createChannel();
    await other.assertQueue(name, { exclusive: true, messageTtl: 1000 });
    const text = await new Promise((resolve) => {
      other.on('error', (error) => resolve(error.message));
      other.assertQueue(name, { exclusive: true, messageTtl: 2000 }).catch(() => {});
    });
    return { code: await failed, text };
  },
};

async function main([url, conversation, name]) {
  const connection = await amqp.connect(url);
  const seen = await conversations[conversation](connection, name);
  await connection.close();
  console.log(JSON.stringify(seen));
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
