// The conversation of amqplib's tape: node tape_amqplib.js URL
'use strict';
const amqp = require('amqplib');

async function main(url) {
  const connection = await amqp.connect(url);
  const channel = await connection.createConfirmChannel();
  await channel.assertExchange('tape-node', 'direct', { durable: false });
  await channel.assertQueue('tape-node', { durable: false, maxPriority: 3 });
  await channel.bindQueue('tape-node', 'tape-node', 'key');
  await channel.prefetch(2);
  for (const body of ['one', 'two', 'three']) {
    channel.publish('tape-node', 'key', Buffer.from(body), {
      contentType: 'text/plain', headers: { list: [1, 2.5, null, 'x'], deep: { yes: true } },
    });
  }
  channel.publish('tape-node', 'nowhere', Buffer.from('back'), { mandatory: true });
  await channel.waitForConfirms();
  await new Promise((resolve) => {
    let count = 0;
    channel.consume('tape-node', (message) => {
      channel.ack(message);
      count += 1;
      if (count === 3) resolve();
    }, { consumerTag: 'tape' });
  });
  await channel.cancel('tape');
  const refused = await connection.createChannel();
  refused.on('error', () => {});
  await refused.checkQueue('tape-nobody').catch(() => {});
  await channel.deleteQueue('tape-node');
  await channel.deleteExchange('tape-node');
  await channel.close();
  await connection.close();
}

main(process.argv[2]);
