package sink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// KafkaConfig is a topic. Records have the log's origin as key, so that those
// of a gateway stay in order, and are acknowledged by all in-sync replicas. The
// producer is idempotent: what it sends again is not written twice while it
// lives.
type KafkaConfig struct {
	Brokers      []string  `yaml:"brokers"`
	Topic        string    `yaml:"topic"`
	Plaintext    bool      `yaml:"plaintext"`     // no TLS; production takes that only on loopback
	Username     string    `yaml:"username"`      // SCRAM-SHA-512; empty: none
	PasswordFile string    `yaml:"password_file"` // likewise
	TLS          TLSConfig `yaml:"tls"`
}

var kafkaKind = Kind{
	Name: "kafka", Batch: 1 << 20, Wait: 100 * time.Millisecond, Limit: 512 << 10,
	has:   func(c *Config) bool { return c.Kafka != nil },
	paths: func(c *Config) []*string { return append(c.Kafka.TLS.paths(), &c.Kafka.PasswordFile) },
	check: func(c *Config, p *problems) {
		k := c.Kafka
		if len(k.Brokers) == 0 {
			p.add("brokers", "required")
		}
		for i, b := range k.Brokers {
			field := fmt.Sprintf("brokers[%d]", i)
			p.address(field, b)
			if host, _, err := net.SplitHostPort(b); err == nil && k.Plaintext && p.production && !loopback(host) {
				p.add(field, "production takes plaintext only to a loopback address")
			}
		}
		p.required("topic", k.Topic)
		p.file("password_file", k.PasswordFile)
		if (k.Username == "") != (k.PasswordFile == "") {
			p.add("username", "a name and a password go together")
		}
		k.TLS.check(p)
	},
	open: openKafka,
}

func openKafka(_ context.Context, c *Config, o Options) (Sink, error) {
	client, err := kgo.NewClient(append(
		KafkaOptions(c.Kafka), kgo.ClientID("sallyport-"+o.Name), kgo.DefaultProduceTopic(c.Kafka.Topic),
		kgo.RequiredAcks(kgo.AllISRAcks()), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
		kgo.ProducerLinger(0), kgo.MaxBufferedBytes(8<<20),
		kgo.MetadataMinAge(time.Second),
		// Else nothing ends a request whose answer does not come, and a sink
		// whose brokers are gone could not be stopped. What was in flight is sent
		// again: at least once.
		kgo.AllowIdempotentProduceCancellation(),
	)...)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	return &kafka{client: client, origin: o.Origin}, nil
}

// KafkaOptions are how a client reaches the brokers and proves itself to them.
func KafkaOptions(k *KafkaConfig) []kgo.Opt {
	opts := []kgo.Opt{kgo.SeedBrokers(k.Brokers...)}
	if !k.Plaintext {
		opts = append(opts, kgo.Dialer(func(ctx context.Context, _, address string) (net.Conn, error) {
			conn, err := k.TLS.dial(ctx, address)
			if err != nil {
				return nil, err // a typed nil would be a connection
			}
			return conn, nil
		}))
	}
	if k.Username != "" {
		opts = append(opts, kgo.SASL(scramOf(k)))
	}
	return opts
}

// scramOf reads the password at each login.
func scramOf(k *KafkaConfig) sasl.Mechanism {
	return scram.Sha512(func(context.Context) (scram.Auth, error) {
		password, err := secret(k.PasswordFile)
		return scram.Auth{User: k.Username, Pass: password}, err
	})
}

// kafkaPatience is how long a batch may take. Then it is sent again.
const kafkaPatience = time.Minute

type kafka struct {
	client *kgo.Client
	origin string
}

func (k *kafka) Send(ctx context.Context, b *Batch) (int, error) {
	records := make([]*kgo.Record, len(b.Messages))
	for i, m := range b.Messages {
		records[i] = &kgo.Record{
			Key: []byte(k.origin), Value: m.Body, Timestamp: m.Time,
			Headers: []kgo.RecordHeader{
				{Key: "id", Value: []byte(m.ID)}, {Key: "index", Value: strconv.AppendUint(nil, m.Index, 10)}, {Key: "kind", Value: []byte(m.Kind)},
			},
		}
	}
	// The producer's own limit counts from the time of a record, and so would
	// never let go what is old.
	ctx, cancel := context.WithTimeout(ctx, kafkaPatience)
	defer cancel()
	results := k.client.ProduceSync(ctx, records...)
	// Results come in the order of acknowledgement; of one partition, that of
	// the records.
	failed := make(map[*kgo.Record]error, len(results))
	for _, r := range results {
		failed[r.Record] = r.Err
	}
	for i, r := range records {
		switch err := failed[r]; {
		case err == nil:
		case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.InvalidRecord):
			return i, &Refused{At: i, Reason: err.Error()}
		default:
			return i, fmt.Errorf("kafka: %w", err)
		}
	}
	return len(records), nil
}

func (k *kafka) Close() error {
	k.client.Close()
	return nil
}
