package exporttest

import (
	"context"
	"crypto/tls"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sallyport-ai/sallyport/audit/export/sink"
)

// Kafka is a broker that keeps its records over restarts.
type Kafka struct {
	Config *sink.KafkaConfig // how a sink reaches it
	*kfake.Cluster

	t    *testing.T
	opts []kfake.Opt
}

// NewKafka starts one.
func NewKafka(t *testing.T, a *Authority) *Kafka {
	t.Helper()
	a.Leaf("kafka")
	own, err := tls.LoadX509KeyPair(filepath.Join(a.Dir, "kafka.pem"), filepath.Join(a.Dir, "kafka.key"))
	if err != nil {
		t.Fatal(err)
	}
	k := &Kafka{t: t, opts: []kfake.Opt{
		kfake.NumBrokers(1), kfake.Ports(FreePort(t)), kfake.SeedTopics(1, "audit"), kfake.DataDir(t.TempDir()), kfake.SyncWrites(),
		kfake.TLS(&tls.Config{Certificates: []tls.Certificate{own}}), kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-512", "sallyport", "s3cret"),
	}}
	k.Start()
	t.Cleanup(func() { k.Close() })
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	k.Config = &sink.KafkaConfig{
		Brokers: k.ListenAddrs(), Topic: "audit", Username: "sallyport", PasswordFile: password, TLS: sink.TLSConfig{CAFile: a.CAFile},
	}
	return k
}

// Start starts it, again after Close.
func (k *Kafka) Start() {
	k.t.Helper()
	var err error
	if k.Cluster, err = kfake.NewCluster(k.opts...); err != nil {
		k.t.Fatal(err)
	}
}

// Message is what a consumer gets.
type Message struct {
	Key, Value []byte
	Header     map[string]string
}

// Consume reads the topic from its beginning until it has n messages that are no
// anchors, which it leaves out.
func (k *Kafka) Consume(n int) (all []Message) {
	k.t.Helper()
	k.read(func(m Message) {
		if m.Header["kind"] != "anchor" {
			all = append(all, m)
		}
	}, func(int64) bool { return len(all) < n })
	return all
}

// Held is all that the topic holds now, anchors too.
func (k *Kafka) Held() (all []Message) {
	k.t.Helper()
	end := int64(-1)
	k.read(func(m Message) { all = append(all, m) }, func(offset int64) bool {
		if end < 0 {
			end = k.end()
		}
		return offset < end
	})
	return all
}

// read gives each message from the beginning on, as long as there is to be more
// behind an offset.
func (k *Kafka) read(each func(Message), more func(offset int64) bool) {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), 30*time.Second)
	defer cancel()
	client, err := kgo.NewClient(append(sink.KafkaOptions(k.Config), kgo.ConsumeTopics(k.Config.Topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	if err != nil {
		k.t.Fatal(err)
	}
	defer client.Close()
	for next := int64(0); more(next); {
		fetches := client.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			k.t.Fatalf("%d records consumed: %v", next, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			m := Message{Key: r.Key, Value: r.Value, Header: make(map[string]string)}
			for _, h := range r.Headers {
				m.Header[h.Key] = string(h.Value)
			}
			next = r.Offset + 1
			each(m)
		})
	}
}

// end is the offset behind the last record of the topic.
func (k *Kafka) end() int64 {
	k.t.Helper()
	client, err := kgo.NewClient(sink.KafkaOptions(k.Config)...)
	if err != nil {
		k.t.Fatal(err)
	}
	defer client.Close()
	partition := kmsg.NewListOffsetsRequestTopicPartition()
	partition.Timestamp = -1
	topic := kmsg.NewListOffsetsRequestTopic()
	topic.Topic, topic.Partitions = k.Config.Topic, append(topic.Partitions, partition)
	req := kmsg.NewPtrListOffsetsRequest()
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(k.t.Context(), client)
	if err != nil {
		k.t.Fatal(err)
	}
	return resp.Topics[0].Partitions[0].Offset
}
