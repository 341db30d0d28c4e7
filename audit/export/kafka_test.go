package export

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sallyport-ai/sallyport/audit/export/sink"
)

// kafka is a broker that keeps its records over restarts.
type kafka struct {
	t    *testing.T
	opts []kfake.Opt
	*kfake.Cluster
}

// newKafka starts one, and returns how a sink reaches it.
func newKafka(t *testing.T, a *authority) (*kafka, *sink.KafkaConfig) {
	t.Helper()
	a.leaf("kafka")
	own, err := tls.LoadX509KeyPair(filepath.Join(a.dir, "kafka.pem"), filepath.Join(a.dir, "kafka.key"))
	if err != nil {
		t.Fatal(err)
	}
	k := &kafka{t: t, opts: []kfake.Opt{
		kfake.NumBrokers(1), kfake.Ports(freePort(t)), kfake.SeedTopics(1, "audit"), kfake.DataDir(t.TempDir()), kfake.SyncWrites(),
		kfake.TLS(&tls.Config{Certificates: []tls.Certificate{own}}), kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-512", "sallyport", "s3cret"),
	}}
	k.start()
	t.Cleanup(func() { k.Close() })
	password := filepath.Join(t.TempDir(), "password")
	if err := writeFile(password, "s3cret\n"); err != nil {
		t.Fatal(err)
	}
	return k, &sink.KafkaConfig{
		Brokers: k.ListenAddrs(), Topic: "audit", Username: "sallyport", PasswordFile: password, TLS: sink.TLSConfig{CAFile: a.caFile},
	}
}

func (k *kafka) start() {
	k.t.Helper()
	var err error
	if k.Cluster, err = kfake.NewCluster(k.opts...); err != nil {
		k.t.Fatal(err)
	}
}

// consumed reads the topic from its beginning until n records have come.
func (k *kafka) consumed(c *sink.KafkaConfig, n int) (indexes []uint64) {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), 30*time.Second)
	defer cancel()
	client, err := kgo.NewClient(append(sink.KafkaOptions(c), kgo.ConsumeTopics("audit"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	if err != nil {
		k.t.Fatal(err)
	}
	defer client.Close()
	for len(indexes) < n {
		fetches := client.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			k.t.Fatalf("%d of %d records consumed: %v", len(indexes), n, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			header := make(map[string]string)
			for _, h := range r.Headers {
				header[h.Key] = string(h.Value)
			}
			if header["kind"] == "anchor" {
				return
			}
			i, err := strconv.ParseUint(header["index"], 10, 64)
			if err != nil || string(r.Key) != origin || header["id"] != fmt.Sprintf("%s/%d", origin, i) {
				k.t.Errorf("key %q, headers %v", r.Key, header)
			}
			indexes = append(indexes, i)
		})
	}
	return indexes
}

func TestKafkaHoldsEveryRecordOnceOverLostAnswersAndABrokersRestart(t *testing.T) {
	k, config := newKafka(t, newAuthority(t))
	w := newWorld(t)
	x, stop := w.start(func(x *Exporter) { small(&x.followers[0].kind) }, SinkConfig{Name: "kafka", To: sink.Config{Kafka: config}})
	w.append(100)
	w.caughtUp(x)
	// Written, and answered as if not: the producer sends again, and the broker
	// knows the batch by its number.
	lost := k.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotEnoughReplicasAfterAppend, Count: 3})
	w.append(100)
	w.caughtUp(x)
	if lost.Hits() == 0 {
		t.Error("no answer was lost")
	}
	k.Close()
	w.append(50)
	k.start()
	w.append(50)
	w.caughtUp(x)
	stop()
	contiguous(t, k.consumed(config, len(w.leaves())), len(w.leaves()))
	if s := x.Status()[0]; s.Dead != 0 || s.Sent != uint64(len(w.leaves())) {
		t.Errorf("status %+v", s)
	}
}

func TestARecordThatABrokerFindsTooLargeIsPutAside(t *testing.T) {
	k, config := newKafka(t, newAuthority(t))
	w := newWorld(t)
	big := decision(1)
	for range 150 {
		c := big.Placement.Candidates[0]
		c.Replica = rand.Text() + rand.Text() // so that it cannot be compressed
		big.Placement.Candidates = append(big.Placement.Candidates, c)
	}
	w.append(10)
	if _, err := w.log.Append(t.Context(), big); err != nil {
		t.Fatal(err)
	}
	w.append(10)
	k.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.MessageTooLarge, Count: -1, When: func(r kmsg.Request) bool {
		return len(r.(*kmsg.ProduceRequest).Topics[0].Partitions[0].Records) > 4<<10
	}})
	x, stop := w.start(func(x *Exporter) { x.followers[0].kind.Batch = 4 << 10 }, SinkConfig{Name: "kafka", To: sink.Config{Kafka: config}})
	w.caughtUp(x)
	stop()
	if s := x.Status()[0]; s.Dead != 1 {
		t.Errorf("status %+v", s)
	}
}

func TestASinkStopsSoonAlthoughItsBrokerIsGone(t *testing.T) {
	k, config := newKafka(t, newAuthority(t))
	w := newWorld(t)
	x, stop := w.start(nil, SinkConfig{Name: "kafka", To: sink.Config{Kafka: config}})
	w.append(20)
	w.caughtUp(x)
	k.Close()
	w.append(20)
	w.until("there is something to send", func() bool { return x.Status()[0].LagTime > 0 })
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	select {
	case <-stopped:
	case <-time.After(20 * time.Second):
		t.Error("still running")
		<-stopped
	}
	k.start() // for the cleanup
}
