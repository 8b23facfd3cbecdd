module penstock/peer

go 1.24

require github.com/apache/pulsar-client-go v0.17.0
