package export

import (
	"crypto/rand"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sallyport-ai/sallyport/audit/export/exporttest"
	"github.com/sallyport-ai/sallyport/audit/export/sink"
)

// consumed returns the indexes of n records of the topic.
func consumed(t *testing.T, k *exporttest.Kafka, n int) (indexes []uint64) {
	t.Helper()
	for _, m := range k.Consume(n) {
		i, err := strconv.ParseUint(m.Header["index"], 10, 64)
		if err != nil || string(m.Key) != origin || m.Header["id"] != fmt.Sprintf("%s/%d", origin, i) {
			t.Errorf("key %q, headers %v", m.Key, m.Header)
		}
		indexes = append(indexes, i)
	}
	return indexes
}

func TestKafkaHoldsEveryRecordOnceOverLostAnswersAndABrokersRestart(t *testing.T) {
	k := exporttest.NewKafka(t, exporttest.NewAuthority(t))
	w := newWorld(t)
	x, stop := w.start(func(x *Exporter) { small(&x.followers[0].kind) }, SinkConfig{Name: "kafka", To: sink.Config{Kafka: k.Config}})
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
	k.Start()
	w.append(50)
	w.caughtUp(x)
	stop()
	contiguous(t, consumed(t, k, len(w.leaves())), len(w.leaves()))
	if s := x.Status()[0]; s.Dead != 0 || s.Sent != uint64(len(w.leaves())) {
		t.Errorf("status %+v", s)
	}
}

func TestARecordThatABrokerFindsTooLargeIsPutAside(t *testing.T) {
	k := exporttest.NewKafka(t, exporttest.NewAuthority(t))
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
	x, stop := w.start(func(x *Exporter) { x.followers[0].kind.Batch = 4 << 10 }, SinkConfig{Name: "kafka", To: sink.Config{Kafka: k.Config}})
	w.caughtUp(x)
	stop()
	if s := x.Status()[0]; s.Dead != 1 {
		t.Errorf("status %+v", s)
	}
}

func TestASinkStopsSoonAlthoughItsBrokerIsGone(t *testing.T) {
	k := exporttest.NewKafka(t, exporttest.NewAuthority(t))
	w := newWorld(t)
	x, stop := w.start(nil, SinkConfig{Name: "kafka", To: sink.Config{Kafka: k.Config}})
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
	k.Start() // for the cleanup
}

func TestKafkaTakesRecordsHoweverLongItWasGone(t *testing.T) {
	k := exporttest.NewKafka(t, exporttest.NewAuthority(t))
	s, err := sink.Open(t.Context(), &sink.Config{Kafka: k.Config}, sink.Options{Name: "kafka", Origin: origin})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	b := &sink.Batch{Origin: origin, Next: 3}
	for i := range 3 {
		old := time.Now().Add(-100 * time.Hour)
		b.Messages = append(b.Messages, sink.Message{Index: uint64(i), ID: fmt.Sprintf("%s/%d", origin, i), Kind: "decision", Time: old, Severity: 1, Body: []byte("{}")})
	}
	if n, err := s.Send(t.Context(), b); err != nil || n != len(b.Messages) {
		t.Fatalf("%d taken, %v", n, err)
	}
	contiguous(t, consumed(t, k, 3), 3)
}
